// A change to many jobs: first a dry run (how many, five samples), then a confirmation that names the number.
import { useEffect, useState } from "preact/hooks";
import { call, type ApiError, type Bulk as BulkBody, type Changed, type Job } from "./api";
import type { Filter } from "./filter";
import { count, counted } from "./format";
import { asApiError } from "./hooks";
import { Button, Dialog, Failed, State, toast, useAction } from "./ui";

export interface Target {
  action: "cancel" | "retry" | "delete" | "reschedule";
  ids?: string[];
  filter?: Filter;
}

const EFFECT: Record<Target["action"], string> = {
  cancel: "Those that have not started never will; those that run are asked to stop. They are not retried.",
  retry: "Finished jobs start anew with all their retries; delayed ones become ready now.",
  delete: "Their records, results and errors are gone for good. Running jobs are left alone.",
  reschedule: "Jobs that are scheduled, retrying or ready start no sooner than then.",
};
const VERB: Record<Target["action"], string> = { cancel: "Cancel", retry: "Retry", delete: "Delete", reschedule: "Reschedule" };

export function Bulk({ target, close }: { target: Target; close: (changed: boolean) => void }) {
  const [plan, setPlan] = useState<{ changed: Changed; samples: Job[] } | null>(null);
  const [failed, setFailed] = useState<ApiError | null>(null);
  const [delay, setDelay] = useState("10m");
  const { busy, error, run } = useAction();
  const body = (dry: boolean): BulkBody => {
    const { q: _, ...where } = target.filter ?? {};
    return { action: target.action, ...(target.ids ? { ids: target.ids } : where), ...(target.action === "reschedule" ? { delay } : {}), dry_run: dry } as BulkBody;
  };
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      const changed = await call("post", "/api/jobs/bulk", { body: body(true), signal: abort.signal });
      const samples = await Promise.all(changed.ids.slice(0, 5).map((id) => call("get", "/api/jobs/{id}", { path: { id }, signal: abort.signal }).catch(() => null)));
      setPlan({ changed, samples: samples.filter((job) => job !== null) });
    })().catch((wrong: unknown) => abort.signal.aborted || setFailed(asApiError(wrong)));
    return () => abort.abort();
  }, []);
  const act = () => run(async () => {
    const done = await call("post", "/api/jobs/bulk", { body: body(false) });
    toast(`${counted(done.changed, "job")} changed`);
    close(true);
  });
  const n = plan?.changed.changed ?? 0;
  return (
    <Dialog title={`${VERB[target.action]} jobs`} close={() => close(false)} wide>
      {failed && <Failed error={failed} />}
      {!plan && !failed && <div class="loading" role="status">Trying it without changing anything …</div>}
      {plan && (
        <>
          <p><strong>{counted(n, "job")}</strong> would change. {EFFECT[target.action]}</p>
          {target.action === "reschedule" && <label class="field">Start in <input value={delay} onInput={(event) => setDelay(event.currentTarget.value)} aria-label="Delay" /></label>}
          {plan.samples.length > 0 && (
            <ul class="samples" aria-label="Samples">
              {plan.samples.map((job) => <li key={job.id}><State name={job.status} /> <strong>{job.task}</strong> <code>{job.id}</code></li>)}
              {n > plan.samples.length && <li class="muted">and {count(n - plan.samples.length)} more</li>}
            </ul>
          )}
          {Object.keys(plan.changed.refused).length > 0 && <p class="muted">{counted(Object.keys(plan.changed.refused).length, "job")} cannot be changed: {Object.values(plan.changed.refused)[0]}.</p>}
        </>
      )}
      {error && <Failed error={error} />}
      <footer>
        <Button onClick={() => close(false)}>Change nothing</Button>
        <Button kind={target.action === "delete" || target.action === "cancel" ? "danger" : "main"} disabled={busy || n === 0} onClick={() => void act()}>{VERB[target.action]} {counted(n, "job")}</Button>
      </footer>
    </Dialog>
  );
}
