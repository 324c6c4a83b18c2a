// Run a job's call again as a new job, with other arguments if you like.
import { useState } from "preact/hooks";
import { call, type Job } from "./api";
import { jobPath, navigate } from "./router";
import { Button, Dialog, Failed, toast, useAction } from "./ui";

export function Rerun({ job, close }: { job: Job; close: () => void }) {
  const readable = job.args !== null;
  const [args, setArgs] = useState(JSON.stringify(job.args ?? [], null, 2));
  const [kwargs, setKwargs] = useState(JSON.stringify(job.kwargs ?? {}, null, 2));
  const wrong = problem(args, Array.isArray) ?? problem(kwargs, (value) => typeof value === "object" && value !== null && !Array.isArray(value));
  const edited = args !== JSON.stringify(job.args ?? [], null, 2) || kwargs !== JSON.stringify(job.kwargs ?? {}, null, 2);
  const { busy, error, run } = useAction();
  const act = () => run(async () => {
    const body = edited ? { args: JSON.parse(args) as unknown[], kwargs: JSON.parse(kwargs) as Record<string, unknown> } : {};
    const made = await call("post", "/api/jobs/{id}/rerun", { path: { id: job.id }, body });
    toast("A new job is on its way");
    close();
    navigate(jobPath(made.id));
  });
  return (
    <Dialog title={`Run ${job.task} again`} close={close} wide>
      <p class="muted">A new job with its own id; this one stays as it is.</p>
      {readable ? (
        <>
          <label class="area">Arguments, a JSON list<textarea class="code" rows={5} value={args} spellcheck={false} onInput={(event) => setArgs(event.currentTarget.value)} /></label>
          <label class="area">Keyword arguments, a JSON object<textarea class="code" rows={5} value={kwargs} spellcheck={false} onInput={(event) => setKwargs(event.currentTarget.value)} /></label>
        </>
      ) : <p>Its arguments are not shown here: it runs with the same ones.</p>}
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      {error && <Failed error={error} />}
      <footer>
        <Button onClick={close}>Close</Button>
        <Button kind="main" needs="admin" disabled={busy || wrong !== null} onClick={() => void act()}>{edited ? "Run with these" : "Run again"}</Button>
      </footer>
    </Dialog>
  );
}

function problem(text: string, fits: (value: unknown) => boolean): string | null {
  try {
    return fits(JSON.parse(text)) ? null : "Arguments are a JSON list; keyword arguments are a JSON object.";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
