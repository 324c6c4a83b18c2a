// Errors: dead jobs as groups of the same error, each to be replayed or purged as a whole.
import { useState } from "preact/hooks";
import { call, type Job } from "../api";
import { counted, count } from "../format";
import { readErrors } from "../history";
import { group, histogram, type Group } from "../groups";
import { useLoad, useNow } from "../hooks";
import { Link, jobPath, setQuery, type Place } from "../router";
import { Button, Confirm, Copy, Empty, Heading, Panel, Shown, toast, When } from "../ui";

const MOST = 3000; // dead jobs that the page reads
const MANY = 1000; // ids in a request

async function readDead(queue: string | null, task: string | null, signal: AbortSignal): Promise<{ jobs: Job[]; cut: boolean }> {
  const jobs: Job[] = [];
  let cursor: string | null = null;
  do {
    const page: { jobs: Job[]; cursor: string | null } = await call("get", "/api/dead", { query: { queue: queue ?? undefined, task: task ?? undefined, limit: MANY, cursor: cursor ?? undefined }, signal });
    jobs.push(...page.jobs);
    cursor = page.cursor;
  } while (cursor !== null && jobs.length < MOST);
  return { jobs, cut: cursor !== null };
}

const DEADLY = new Set(["died", "replayed", "deleted"]);

export default function Errors({ place }: { place: Place }) {
  const queue = place.query.get("queue");
  const task = place.query.get("task");
  const open = place.query.get("open");
  const loaded = useLoad(`errors ${queue} ${task}`, (signal) => readDead(queue, task, signal), (changes) => changes.some((change) => change.events.some((event) => DEADLY.has(event.kind))));
  return (
    <>
      <Heading title="Errors">
        {(queue || task) && <Button kind="quiet" onClick={() => setQuery({ queue: null, task: null })}>All but {queue ?? task}: show</Button>}
      </Heading>
      <p class="muted lead">Dead jobs that the broker keeps, by error. Numbers, ids, addresses and quoted texts in a message do not make another group.</p>
      <Shown loaded={loaded}>
        {({ jobs, cut }) => {
          const groups = group(jobs);
          const from = Math.min(...jobs.map((job) => Date.parse(job.finished_at ?? job.updated_at)));
          return (
            <>
              {cut && <p class="muted">The newest {count(jobs.length)} dead jobs; there are more.</p>}
              {groups.length === 0 && <Panel><Empty title="No job is dead">Jobs whose retries are used up appear here.</Empty></Panel>}
              <div class="groups">
                {groups.map((one) => <GroupRow key={one.print} one={one} from={from} open={open === one.print} reload={loaded.reload} />)}
              </div>
            </>
          );
        }}
      </Shown>
      <Recorded />
    </>
  );
}

/** Errors of the last week, if there is a history: also of jobs that have succeeded since, or are gone. */
function Recorded() {
  const loaded = useLoad("recorded", (signal) => readErrors("7d", signal), null);
  if (!loaded.data || loaded.data.length === 0) return null;
  return (
    <Panel title="Failed runs of the last 7 days, from the history" class="flush">
      <div class="scroll"><table class="small">
        <thead><tr><th scope="col">Error</th><th scope="col">Task</th><th scope="col" class="number">Runs</th><th scope="col">Last 24 hours</th><th scope="col">First</th><th scope="col">Last</th><th scope="col">Versions</th></tr></thead>
        <tbody>{loaded.data.slice(0, 50).map((one) => <tr key={one.fingerprint}><th scope="row"><span class="error-type">{one.type}</span><div class="muted">{one.message.slice(0, 200)}</div></th><td>{one.task}</td><td class="number">{count(one.count)}</td><td><Spark values={one.hours} label={`${count(one.count)} over 24 hours`} /></td><td><When at={one.first_seen} /></td><td><Link to={jobPath(one.last_job)}><When at={one.last_seen} /></Link></td><td>{one.versions.join(", ")}</td></tr>)}</tbody>
      </table></div>
    </Panel>
  );
}

function GroupRow({ one, from, open, reload }: { one: Group; from: number; open: boolean; reload: () => void }) {
  const now = useNow(10_000);
  const [dialog, setDialog] = useState<"replay" | "purge" | null>(null);
  const change = async (path: "/api/dead/replay" | "/api/dead/purge") => {
    let changed = 0;
    for (let first = 0; first < one.jobs.length; first += MANY) {
      const ids = one.jobs.slice(first, first + MANY).map((job) => job.id);
      changed += (await call("post", path, { body: { ids } })).changed;
    }
    toast(`${counted(changed, "job")} ${path.endsWith("replay") ? "run again" : "purged"}`);
    reload();
  };
  const latest = one.jobs[0] as Job;
  return (
    <section class="panel group">
      <header>
        <div class="grow">
          <h2><span class="error-type">{one.type || "No error"}</span> <span class="muted">in</span> {one.task}</h2>
          <p class="message">{one.message}</p>
          <p class="muted">{one.queues.join(", ")} · first <When at={one.first} /> · last <When at={one.last} /></p>
        </div>
        <Spark values={histogram(one, from, now)} label={`${count(one.jobs.length)} over time`} />
        <strong class="size">{count(one.jobs.length)}</strong>
        <div class="actions">
          <Button kind="quiet" aria-expanded={open} onClick={() => setQuery({ open: open ? null : one.print })}>{open ? "Less" : "Look"}</Button>
          <Button kind="main" needs="admin" onClick={() => setDialog("replay")} aria-label={`Replay ${counted(one.jobs.length, "job")} of ${one.task}`}>Replay</Button>
          <Button kind="danger" needs="admin" onClick={() => setDialog("purge")} aria-label={`Purge ${counted(one.jobs.length, "job")} of ${one.task}`}>Purge</Button>
        </div>
      </header>
      {open && (
        <div class="inside">
          {latest.error?.traceback && <><div class="actions"><Copy text={latest.error.traceback}>Copy the traceback</Copy></div><pre class="code" tabIndex={0} role="region" aria-label="Traceback of the latest">{latest.error.traceback}</pre></>}
          <ul class="samples">
            {one.jobs.slice(0, 20).map((job) => <li key={job.id}><Link to={jobPath(job.id)}>{job.id}</Link> <When at={job.finished_at ?? job.updated_at} /> <span class="muted">{job.reason}</span></li>)}
            {one.jobs.length > 20 && <li class="muted">and {count(one.jobs.length - 20)} more</li>}
          </ul>
        </div>
      )}
      {dialog === "replay" && <Confirm title="Replay this group?" danger={false} text={`${counted(one.jobs.length, "job")} of ${one.task} start anew with all their retries.`} button={`Replay ${counted(one.jobs.length, "job")}`} close={() => setDialog(null)} act={() => change("/api/dead/replay")} />}
      {dialog === "purge" && <Confirm title="Purge this group?" text={`${counted(one.jobs.length, "dead job")} of ${one.task} are gone for good.`} button={`Purge ${counted(one.jobs.length, "job")}`} close={() => setDialog(null)} act={() => change("/api/dead/purge")} />}
    </section>
  );
}

function Spark({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(1, ...values);
  return (
    <svg class="spark" viewBox={`0 0 ${values.length * 4} 28`} role="img" aria-label={label} preserveAspectRatio="none">
      {values.map((value, n) => value > 0 && <rect key={n} x={n * 4} y={28 - Math.max(3, (28 * value) / most)} width="3" height={Math.max(3, (28 * value) / most)} />)}
    </svg>
  );
}
