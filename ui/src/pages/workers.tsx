// Workers: who is at work, their slots, the jobs in their hands.
import { useMemo } from "preact/hooks";
import { call, type Job, type Worker } from "../api";
import { count, duration, since } from "../format";
import { useLoad, useNow } from "../hooks";
import { Link, jobPath, setQuery, type Place } from "../router";
import { Bar, Empty, Heading, Panel, Shown, State, When } from "../ui";

const SHOWN = 100;
const SPAN = 300_000; // milliseconds that lanes show

export default function Workers({ place }: { place: Place }) {
  const loaded = useLoad("workers", (signal) => call("get", "/api/workers", { signal }));
  const running = useLoad("running", (signal) => call("get", "/api/jobs", { query: { state: "running", limit: 500 }, signal }));
  const sought = place.query.get("q") ?? "";
  const now = useNow();
  const jobs = running.data?.jobs ?? [];
  return (
    <>
      <Heading title="Workers">
        <input class="search" type="search" placeholder="Find a worker" aria-label="Find a worker" value={sought} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
      </Heading>
      <Shown loaded={loaded}>
        {({ workers }) => {
          const shown = workers.filter((worker) => `${worker.id} ${worker.host} ${worker.queues.join(" ")}`.includes(sought));
          return (
            <>
              {workers.length === 0 && <Panel><Empty title="No worker is running">Start one with <code>dray worker</code>; on a laptop, <code>dray dev</code> runs everything.</Empty></Panel>}
              <div class="cards">{shown.slice(0, SHOWN).map((worker) => <Card key={worker.id} worker={worker} jobs={jobs} now={now} />)}</div>
              {shown.length > SHOWN && <p class="muted lead">The first {SHOWN} of {count(shown.length)}: find others by name, host or queue.</p>}
              {shown.length > 0 && <Lanes workers={shown.slice(0, SHOWN)} now={now} />}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function Card({ worker, jobs, now }: { worker: Worker; jobs: Job[]; now: number }) {
  const sessions = new Set(worker.executors.map((executor) => executor.session));
  const mine = jobs.filter((job) => sessions.has(job.worker));
  const silent = since(worker.seen_at, now) > 30;
  return (
    <Panel title={<><span class="name">{worker.id}</span> <State name={silent ? "silent" : worker.state} />{worker.leader && <span class="mark" title="It runs schedules and recovery for all">leads</span>}</>}>
      <div class="slots"><Bar share={worker.slots ? worker.running / worker.slots : 0} label={`${count(worker.running)} of ${count(worker.slots)} slots`} class="large" /><span>{count(worker.running)} of {count(worker.slots)} slots</span></div>
      <p class="muted">{worker.host}, pid {worker.pid}, {worker.mode}, {worker.version} · started <When at={worker.started_at} /> · heartbeat <When at={worker.seen_at} /></p>
      <p class="muted">Queues: {worker.queues.join(", ") || "none"}{worker.average !== null && ` · a run takes ${duration(worker.average)}`}{worker.p95 !== null && `, 95 of 100 within ${duration(worker.p95)}`}</p>
      <div class="scroll">
        <table class="small">
          <thead><tr><th scope="col">Executor</th><th scope="col" class="number">Running</th><th scope="col" class="number">Slots</th><th scope="col" class="number">Done</th><th scope="col" class="number">Failed</th><th scope="col" class="number">Loop</th></tr></thead>
          <tbody>
            {worker.executors.map((one) => (
              <tr key={one.number}><th scope="row">{one.number} <span class="muted">pid {one.pid}</span></th><td class="number">{count(one.running)}</td><td class="number">{count(one.slots)}</td><td class="number">{count(one.succeeded)}</td><td class="number">{count(one.failed)}</td><td class="number">{one.beat_age > 5000 ? <strong class="bad">stuck for {duration(one.beat_age / 1000)}</strong> : "turns"}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
      {mine.length > 0 && <ul class="samples" aria-label="Jobs in its hands">{mine.slice(0, 8).map((job) => <li key={job.id}><Link to={jobPath(job.id)}>{job.task}</Link> <span class="muted">for {job.started_at ? duration(since(job.started_at, now)) : "a moment"}</span></li>)}{mine.length > 8 && <li class="muted">and {count(mine.length - 8)} more</li>}</ul>}
    </Panel>
  );
}

interface Bit {
  id: string;
  task: string;
  from: number;
  to: number;
  outcome: string;
}

/** Runs of the last five minutes, one lane per executor, as far as the broker names who ran them. */
function Lanes({ workers, now }: { workers: Worker[]; now: number }) {
  const tick = Math.floor(now / 2000);
  const recent = useLoad(`lanes ${Math.floor(now / 10_000)}`, (signal) => call("get", "/api/jobs", { query: { since: "5m", limit: 500 }, signal }), null);
  const last = useMemo(() => ({ jobs: [] as Job[] }), []);
  if (recent.data) last.jobs = recent.data.jobs;
  const lanes = useMemo(() => {
    const found = new Map<string, Bit[]>();
    for (const job of last.jobs) for (const run of job.run_history) {
      if (!run.worker) continue;
      const bits = found.get(run.worker) ?? [];
      bits.push({ id: job.id, task: job.task, from: Date.parse(run.started_at), to: run.ended_at ? Date.parse(run.ended_at) : now, outcome: run.outcome });
      found.set(run.worker, bits);
    }
    return found;
  }, [tick, last.jobs]);
  const rows = workers.flatMap((worker) => worker.executors.filter((one) => one.session && lanes.has(one.session)).map((one) => ({ name: `${worker.host} ${one.pid}`, bits: lanes.get(one.session ?? "") ?? [] })));
  if (rows.length === 0) return null;
  return (
    <Panel title="The last five minutes" actions={<span class="muted">Running, failed and retried runs; the broker does not keep who ran a job that succeeded at once.</span>}>
      <ol class="lanes" aria-label="Runs by executor">
        {rows.map((row) => (
          <li key={row.name}>
            <span class="name">{row.name}</span>
            <span class="track">
              {row.bits.map((bit) => <Link key={bit.id + bit.from} to={jobPath(bit.id)} class={bit.outcome} aria-label={`${bit.task}, ${bit.outcome}`} title={`${bit.task}: ${bit.outcome}, ${duration((bit.to - bit.from) / 1000)}`} style={{ left: `${Math.max(0, 100 * (1 - (now - bit.from) / SPAN))}%`, width: `${Math.max(0.4, (100 * (bit.to - Math.max(bit.from, now - SPAN))) / SPAN)}%` }}>{""}</Link>)}
            </span>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
