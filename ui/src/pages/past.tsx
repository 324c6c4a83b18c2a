// Jobs that the history recorded: a search, and one job that the broker does not keep any more.
import { useState } from "preact/hooks";
import { dateTime } from "../format";
import { NONE, readJob, search, type HistoryJob } from "../history";
import { useLoad } from "../hooks";
import { Link, jobPath, setQuery } from "../router";
import { Button, Empty, Facts, Json, Panel, Shown, State, When } from "../ui";

export function PastJobs({ text }: { text: string }) {
  const [typed, setTyped] = useState(text);
  const [more, setMore] = useState<{ text: string; jobs: HistoryJob[]; cursor: string | null } | null>(null);
  const loaded = useLoad(`history ${text}`, (signal) => search(text, null, signal), null);
  const submit = (event: Event) => {
    event.preventDefault();
    setQuery({ q: typed }, { replace: false });
  };
  const next = async (cursor: string, before: HistoryJob[]) => {
    const page = await search(text, cursor, new AbortController().signal);
    if (page) setMore({ text, jobs: [...before, ...page.jobs], cursor: page.cursor });
  };
  return (
    <>
      <form class="filter" role="search" onSubmit={submit}><input aria-label="Search the history" placeholder='task:email.* state:dead error:"timed out" arg.user_id:42 after:1d' value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></form>
      <Shown loaded={loaded.data === null && !loaded.error && !loaded.loading ? { ...loaded, data: { jobs: [] as HistoryJob[], cursor: null as string | null, none: true } } : { ...loaded, data: loaded.data ? { ...loaded.data, none: false } : null }}>
        {(found) => {
          if (found.none) return <Panel><Empty title="There is no history">{NONE}</Empty></Panel>;
          const { jobs, cursor } = more?.text === text ? more : found;
          return (
            <Panel class="flush">
              {jobs.length === 0 && <Empty title="Nothing fits" />}
              {jobs.length > 0 && (
                <div class="scroll"><table class="small">
                  <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col">Queue</th><th scope="col">Error, reason</th><th scope="col">Created</th></tr></thead>
                  <tbody>{jobs.map((job) => <tr key={`${job.id} ${job.created_at}`}><th scope="row"><Link to={jobPath(job.id)}>{job.task}</Link></th><td><State name={job.state} /></td><td>{job.queue}</td><td class="muted">{job.error_type ? `${job.error_type}: ${job.error ?? ""}` : job.reason}</td><td><When at={job.created_at} /></td></tr>)}</tbody>
                </table></div>
              )}
              {cursor !== null && <p class="lead"><Button onClick={() => void next(cursor, jobs)}>Show more</Button></p>}
            </Panel>
          );
        }}
      </Shown>
    </>
  );
}

/** What the history knows of a job that the broker does not keep any more. */
export function PastJob({ id }: { id: string }) {
  const loaded = useLoad(`past ${id}`, (signal) => readJob(id, signal), null);
  const job = loaded.data?.jobs.at(-1);
  if (loaded.loading && !loaded.data) return <div class="loading" role="status">Loading …</div>;
  if (!job) return <Empty title="There is no such job">The broker does not know <code>{id}</code>: it never was, was deleted, or is not kept any more. <Link to="/jobs">See all jobs</Link></Empty>;
  return (
    <>
      <p class="muted">The broker does not keep this job any more: this is what the history recorded.</p>
      <Panel title={job.task}>
        <Facts rows={[["State", <State name={job.state} />], ["Queue", job.queue], ["Attempt", job.attempt], ["Created", dateTime(job.created_at)], ["Finished", job.finished_at ? dateTime(job.finished_at) : "—"], ["Reason", job.reason ?? "—"]]} />
      </Panel>
      {job.args !== null && <Panel title="Arguments"><Json value={job.args} label="Arguments" /></Panel>}
      {job.result !== null && <Panel title="Result"><Json value={job.result} label="Result" /></Panel>}
      <Panel title="Attempts">
        <ol class="steps">
          {(loaded.data?.attempts ?? []).map((one) => <li key={one.run}><div class="step"><State name={one.outcome} /> {dateTime(one.started_at)} {one.worker && <code>{one.worker}</code>} {one.version && <span class="muted">version {one.version}</span>}</div>{one.traceback ? <pre class="code" tabIndex={0} role="region" aria-label={`Traceback of run ${one.run}`}>{one.traceback}</pre> : one.error && <p class="bad">{one.error_type}: {one.error}</p>}</li>)}
        </ol>
      </Panel>
    </>
  );
}
