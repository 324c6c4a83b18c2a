// One job: its life as a waterfall, and everything known of it.
import { useState } from "preact/hooks";
import { call, type Job, type JobWithSteps } from "../api";
import { asCommand, asCurl, asPython } from "../copyas";
import { count, decimal, duration, priority } from "../format";
import { useKey, useLoad, useNow } from "../hooks";
import { Rerun } from "../rerun";
import { flowPath } from "./flows";
import { PastJob } from "./past";
import { Steps } from "../steps";
import { Link, jobPath, navigate, pathOf, type Place } from "../router";
import { app, attempt, Bar, Button, Confirm, Copy, Facts, Heading, Json, Menu, Panel, Shown, State, When } from "../ui";
import { Waterfall } from "../waterfall";

const FINISHED = new Set(["succeeded", "dead", "cancelled"]);

export default function JobPage({ place }: { place: Place }) {
  const id = place.parts[1] ?? "";
  const loaded = useLoad(`job ${id}`, (signal) => call("get", "/api/jobs/{id}", { path: { id }, signal }), (changes) => changes.some((change) => change.events.some((event) => event.id === id)));
  if (loaded.error?.status === 404) {
    return (
      <>
        <Heading title="Job" />
        <PastJob id={id} />
      </>
    );
  }
  return <Shown loaded={loaded}>{(job) => <Details job={job} reload={loaded.reload} />}</Shown>;
}

function Details({ job, reload }: { job: JobWithSteps; reload: () => void }) {
  const now = useNow(FINISHED.has(job.status) ? 60_000 : 1000);
  return (
    <>
      <Heading title={job.task}>
        <Actions job={job} reload={reload} />
      </Heading>
      <div class="subtitle">
        <State name={job.status} /> <code class="id">{job.id}</code> <Copy text={job.id}>Copy the id</Copy>
        {job.description && <span>{job.description}</span>}
      </div>
      <div class="panes">
        <div>
          {!FINISHED.has(job.status) && <WhyPanel job={job} />}
          {job.progress && <ProgressPanel job={job} />}
          <Panel title="Timeline"><Waterfall job={job} now={now} /></Panel>
          <Steps job={job} />
          {job.error && <ErrorPanel job={job} />}
          <Values job={job} />
        </div>
        <div>
          <Panel title="Details"><Facts rows={facts(job)} /></Panel>
          {Object.keys(job.headers).length > 0 && <Panel title="Headers"><Facts rows={Object.entries(job.headers)} /></Panel>}
          <Panel title="In a terminal">
            <CommandLine text={`dray why ${job.id}`} />
            <CommandLine text={`dray jobs show ${job.id}`} />
          </Panel>
        </div>
      </div>
    </>
  );
}

const CommandLine = ({ text }: { text: string }) => <div class="command"><code>{text}</code><Copy text={text} /></div>;

function facts(job: Job): [string, preact.ComponentChildren][] {
  const first = job.run_history[0]?.started_at;
  const wait = first && job.runs <= job.run_history.length ? (Date.parse(first) - Date.parse(job.created_at)) / 1000 : null;
  const rows: [string, preact.ComponentChildren | null][] = [
    ["Queue", <Link to={pathOf("/jobs", { queue: job.queue })}>{job.queue}</Link>],
    ["Priority", priority(job.priority)],
    ["Attempt", `${job.attempt} of ${job.retries + 1}`],
    ["Runs", job.runs > job.attempt || job.crashes > 0 ? `${count(job.runs)}, ${count(job.crashes)} crashed` : null],
    ["Created", <When at={job.created_at} />],
    ["Due", job.due_at ? <When at={job.due_at} /> : null],
    ["Started", job.started_at ? <When at={job.started_at} /> : null],
    ["Finished", job.finished_at ? <When at={job.finished_at} /> : null],
    ["First wait", wait === null ? null : duration(Math.max(0, wait))],
    ["Expires", job.expires_at ? <When at={job.expires_at} /> : null],
    ["Deadline", job.deadline ? <When at={job.deadline} /> : null],
    ["Timeout", job.timeout === null ? null : duration(job.timeout)],
    ["Worker", job.worker ? <code>{job.worker}</code> : null],
    ["Key", job.key],
    ["Group", job.group ? <Link to={pathOf("/jobs", { group: job.group })}>{job.group}</Link> : null],
    ["Tags", job.tags.length > 0 ? <span class="tags">{job.tags.map((tag) => <Link key={tag} to={pathOf("/jobs", { tag })}>{tag}</Link>)}</span> : null],
    ["Parent", job.parent ? <Link to={jobPath(job.parent)}>{job.parent}</Link> : null],
    ["Flow", job.flow ? job.node ? <Link to={flowPath(job.flow)}>{job.node}</Link> : <Link to={jobPath(job.flow)}>{job.flow}</Link> : null],
    ["Sleeps until", job.sleeps_until ? <When at={job.sleeps_until} /> : null],
    ["Waits for event", job.waits_for_events.join(", ")],
    ["Children", <Link to={pathOf("/jobs", { parent: job.id })}>jobs that it enqueued</Link>],
    ["Run again of", job.rerun_of ? <Link to={jobPath(job.rerun_of)}>{job.rerun_of}</Link> : null],
    ["Waits for", job.waits_for.length > 0 ? <span class="tags">{job.waits_for.slice(0, 20).map((id) => <Link key={id} to={jobPath(id)}>{id}</Link>)}</span> : null],
    ["Reason", job.reason],
  ];
  return rows.filter((row): row is [string, preact.ComponentChildren] => row[1] !== null && row[1] !== "");
}

function WhyPanel({ job }: { job: Job }) {
  const why = useLoad(`why ${job.id} ${job.status} ${job.runs}`, (signal) => call("get", "/api/jobs/{id}/why", { path: { id: job.id }, signal }));
  return (
    <Panel title="Why it stands here" class="why">
      <Shown loaded={why}>{(found) => <p>{found.text}.</p>}</Shown>
    </Panel>
  );
}

function ProgressPanel({ job }: { job: Job }) {
  const { done, total, note, data } = job.progress as NonNullable<Job["progress"]>;
  const share = total ? (done ?? 0) / total : 0;
  return (
    <Panel title="Progress">
      {total ? <Bar share={share} label={`${decimal(share * 100)} %`} class="large" /> : null}
      <p>{total ? `${decimal(done ?? 0)} of ${decimal(total)} (${decimal(share * 100)} %)` : decimal(done ?? 0)} {note}</p>
      {Object.keys(data).length > 0 && <Json value={data} label="Data of the progress" />}
    </Panel>
  );
}

function ErrorPanel({ job }: { job: Job }) {
  const error = job.error as NonNullable<Job["error"]>;
  return (
    <Panel title={job.status === "dead" ? "Error" : "Error of the last failed run"} actions={error.traceback ? <Copy text={error.traceback} /> : null} class="error">
      <p><strong>{error.type}</strong>{error.message ? `: ${error.message}` : ""}</p>
      {error.traceback && <pre class="code" tabIndex={0} role="region" aria-label="Traceback">{error.traceback}</pre>}
    </Panel>
  );
}

function Values({ job }: { job: Job }) {
  if (app.session?.hides_values) return <Panel title="Arguments"><p class="muted">Arguments, results and errors are hidden from your key.</p></Panel>;
  const none = job.args !== null && job.args.length === 0 && Object.keys(job.kwargs ?? {}).length === 0;
  return (
    <>
      <Panel title="Arguments">
        {job.args === null && <p class="muted">They cannot be read here.</p>}
        {none && <p class="muted">None.</p>}
        {job.args !== null && job.args.length > 0 && <Json value={job.args} label="Arguments" />}
        {job.kwargs !== null && Object.keys(job.kwargs).length > 0 && <Json value={job.kwargs} label="Keyword arguments" />}
      </Panel>
      {job.status === "succeeded" && <Panel title="Result">{job.result === null ? <p class="muted">None, or not kept any more.</p> : <Json value={job.result} label="Result" />}</Panel>}
    </>
  );
}

function Actions({ job, reload }: { job: Job; reload: () => void }) {
  const [dialog, setDialog] = useState<"rerun" | "cancel" | "delete" | null>(null);
  const close = () => setDialog(null);
  const path = { id: job.id };
  useKey((event) => {
    if (event.key === "e") setDialog("rerun");
  });
  const goOn = async () => {
    await attempt(() => call("post", "/api/jobs/{id}/continue", { path }), "It goes on");
    reload();
  };
  const retry = async () => {
    await attempt(() => call("post", "/api/jobs/{id}/retry", { path }), "It runs again");
    reload();
  };
  return (
    <>
      {!FINISHED.has(job.status) && <Button kind="danger" needs="submit" disabled={job.cancelling} onClick={() => setDialog("cancel")}>{job.cancelling ? "Cancelling …" : "Cancel"}</Button>}
      {(FINISHED.has(job.status) || job.status === "retrying" || job.status === "scheduled") && <Button needs="admin" onClick={() => void retry()}>{FINISHED.has(job.status) ? "Retry" : "Run now"}</Button>}
      {job.parked && <Button needs="admin" kind="main" onClick={() => void goOn()}>Continue</Button>}
      <Button needs="admin" kind="main" onClick={() => setDialog("rerun")}>Edit and run</Button>
      <Menu label="More">
        <Copy text={asCommand(job)}>Copy as dray enqueue</Copy>
        <Copy text={asCurl(job)}>Copy as curl</Copy>
        <Copy text={asPython(job)}>Copy as Python</Copy>
        {job.status !== "running" && <Button kind="quiet" needs="admin" onClick={() => setDialog("delete")}>Delete</Button>}
      </Menu>
      {dialog === "rerun" && <Rerun job={job} close={close} />}
      {dialog === "cancel" && <Confirm title="Cancel this job?" text={job.status === "running" ? "It is asked to stop and never retried." : "It will never start."} button="Cancel it" close={close} act={() => call("delete", "/api/jobs/{id}/cancel", { path }).then(reload)} />}
      {dialog === "delete" && <Confirm title="Delete this job?" text="Its record, result and error are gone for good." button="Delete it" close={close} act={() => call("delete", "/api/jobs/{id}", { path }).then(() => navigate("/jobs"))} />}
    </>
  );
}
