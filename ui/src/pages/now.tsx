// Now: what needs attention, how everything stands, and the last minutes as charts.
import { useEffect, useMemo, useState } from "preact/hooks";
import { call, type Queue } from "../api";
import { findings, type Finding } from "../attention";
import type ChartComponent from "../chart";
import { brief, count, decimal, duration, since } from "../format";
import { columns as historyColumns, NONE, readStats, type Point, type Stats } from "../history";
import { useLiveState, useLoad, useModule, useNow } from "../hooks";
import { Link, navigate, pathOf, type Place } from "../router";
import { percentile, series, sum } from "../series";
import { attempt, Bar, Button, Empty, Heading, Panel, Shown, State } from "../ui";

const STEP = 5;

export function Now({ place }: { place: Place }) {
  const facts = useLoad("now", async (signal) => {
    const [queues, workers, schedules, guarantees] = await Promise.all([
      call("get", "/api/queues", { signal }),
      call("get", "/api/workers", { signal }),
      call("get", "/api/schedules", { signal }),
      call("get", "/api/guarantees", { signal }).catch(() => null),
    ]);
    return { queues: queues.queues, workers: workers.workers, schedules: schedules.schedules, guarantees };
  });
  const now = useNow();
  return (
    <>
      <Heading title="Now" />
      <Shown loaded={facts}>
        {(data) => (
          <>
            <Tiles queues={data.queues} slots={data.workers.reduce((total, worker) => total + worker.slots, 0)} workers={data.workers.length} now={now} />
            <Attention found={findings(data, now)} reload={facts.reload} />
            <Charts now={now} range={place.query.get("range") ?? "live"} marks={data.workers.map((worker) => ({ at: Date.parse(worker.started_at) / 1000, text: `worker ${worker.id} started` }))} />
            <Depths queues={data.queues} now={now} />
          </>
        )}
      </Shown>
    </>
  );
}

function Tiles({ queues, slots, workers, now }: { queues: Queue[]; slots: number; workers: number; now: number }) {
  const total = (state: string) => queues.reduce((all, queue) => all + (queue.counts[state] ?? 0), 0);
  const oldest = queues.map((queue) => queue.oldest_ready_at).filter(Boolean).sort()[0];
  const done = series.recent(now, 60, (bucket) => bucket.succeeded);
  const failed = series.recent(now, 60, (bucket) => bucket.failed);
  return (
    <div class="tiles">
      <Tile name="Ready" value={brief(total("ready"))} note={oldest ? `oldest waits ${duration(since(oldest, now))}` : "nothing waits"} to={pathOf("/jobs", { state: "ready" })} />
      <Tile name="Running" value={brief(total("running"))} note={`of ${count(slots)} slots on ${count(workers)} ${workers === 1 ? "worker" : "workers"}`} to={pathOf("/jobs", { state: "running" })} />
      <Tile name="Done in a minute" value={brief(done)} note={`${decimal(done / 60)} per second`} to={pathOf("/jobs", { state: "succeeded" })} />
      <Tile name="Failed runs in a minute" value={brief(failed)} note={done + failed > 0 ? `${decimal((100 * failed) / (done + failed))} % of runs` : "no runs"} to="/errors" bad={failed > 0} />
      <Tile name="Scheduled, retrying" value={brief(total("scheduled") + total("retrying"))} note={`${brief(total("retrying"))} after a failure`} to={pathOf("/jobs", { state: "scheduled" })} />
      <Tile name="Dead" value={brief(total("dead"))} note="until replayed or purged" to="/errors" bad={total("dead") > 0} />
    </div>
  );
}

const Tile = ({ name, value, note, to, bad = false }: { name: string; value: string; note: string; to: string; bad?: boolean }) => (
  <Link to={to} class={`tile ${bad ? "bad" : ""}`}>
    <span class="name">{name}</span>
    <strong>{value}</strong>
    <span class="note">{note}</span>
  </Link>
);

function Attention({ found, reload }: { found: Finding[]; reload: () => void }) {
  const [all, setAll] = useState(false);
  const shown = all ? found : found.slice(0, 6);
  const act = async (one: Finding) => {
    if (one.to) return navigate(one.to);
    const target = one.act;
    if (target === undefined) return;
    await attempt(() => ("queue" in target ? call("post", target.path, { path: { queue: target.queue }, body: {} }) : call("post", target.path, { path: { name: target.name } })), `${one.title}: resumed`);
    reload();
  };
  return (
    <Panel title="Needs attention">
      {found.length === 0 && <Empty title="Nothing needs attention">Queues move, workers answer, no job is dead.</Empty>}
      <ul class="findings">
        {shown.map((one) => (
          <li key={one.id} class={one.level}>
            <div>
              <strong>{one.title}</strong>
              <p>{one.reason}</p>
            </div>
            <Button needs={one.act ? "admin" : undefined} onClick={() => void act(one)} aria-label={`${one.button}: ${one.title}`}>{one.button}</Button>
          </li>
        ))}
      </ul>
      {found.length > shown.length && <Button kind="quiet" onClick={() => setAll(true)}>Show {found.length - shown.length} more</Button>}
    </Panel>
  );
}

const RANGES: Record<string, number> = { "1h": 3600, "24h": 86_400, "7d": 604_800 };

function Charts({ now, range, marks }: { now: number; range: string; marks: { at: number; text: string }[] }) {
  const Chart = useModule(() => import("../chart"))?.default as typeof ChartComponent | undefined;
  const state = useLiveState();
  const tick = Math.floor(now / 1000 / STEP);
  const seconds = RANGES[range];
  const past = useLoad(`stats ${range}`, (signal) => (seconds ? readStats(range, signal) : Promise.resolve(null)), null);
  useEffect(() => {
    const timer = setInterval(past.reload, 60_000);
    return () => clearInterval(timer);
  }, []);
  const [throughput, waits] = useMemo(
    () => past.data && seconds ? pastColumns(past.data, seconds, now) : [
      series.columns(now, STEP, [sum("succeeded", STEP), sum("failed", STEP), sum("put", STEP)]),
      series.columns(now, STEP, [percentile("waits", 0.95), percentile("runs", 0.95)]),
    ],
    [tick, Math.floor(series.total / 50), past.data],
  );
  if (state === "polling") return <Panel title="Charts"><Empty title="This key sees no live events">A key for certain tasks may not follow them.</Empty></Panel>;
  return (
    <>
    <nav class="tabs ranges" aria-label="Time">
      {["live", ...Object.keys(RANGES)].map((one) => <Link key={one} to={pathOf("/", { range: one === "live" ? "" : one })} aria-current={one === range ? "true" : undefined}>{one}</Link>)}
      {seconds && !past.loading && !past.data && <span class="muted">{NONE}</span>}
    </nav>
    <div class="two">
      <Panel title="Throughput, per second" actions={<Legend lines={[["succeeded", "--succeeded"], ["failed", "--dead"], ["enqueued", "--ready"]]} />}>
        {Chart ? <Chart columns={throughput ?? []} lines={[{ name: "succeeded", color: "--succeeded", fill: true }, { name: "failed", color: "--dead" }, { name: "enqueued", color: "--ready" }]} text={decimal} label="Throughput per second" marks={marks} /> : <div class="chart" />}
      </Panel>
      <Panel title="Wait and run time, 95 of 100" actions={<Legend lines={[["wait", "--scheduled"], ["run", "--running"]]} />}>
        {Chart ? <Chart columns={waits ?? []} lines={[{ name: "wait", color: "--scheduled" }, { name: "run", color: "--running" }]} text={duration} label="Wait and run time" marks={marks} /> : <div class="chart" />}
      </Panel>
    </div>
    </>
  );
}

/** Throughput, and waits and run times, of the history. */
function pastColumns(stats: Stats, seconds: number, now: number): (number | null)[][][] {
  const rate = (name: "succeeded" | "failed") => (point: Point | undefined) => (point?.[name] ?? 0) / Math.max(1, stats.step);
  const none = () => null;
  return [
    historyColumns(stats, seconds, now, [rate("succeeded"), rate("failed"), none]),
    historyColumns(stats, seconds, now, [(point) => point?.waited_p95 ?? null, (point) => point?.took_p95 ?? null]),
  ];
}

const Legend = ({ lines }: { lines: [string, string][] }) => (
  <span class="legend" aria-hidden="true">
    {lines.map(([name, color]) => (
      <span key={name}><i style={{ background: `var(${color})` }} />{name}</span>
    ))}
  </span>
);

function Depths({ queues, now }: { queues: Queue[]; now: number }) {
  const most = Math.max(1, ...queues.map((queue) => queue.counts["ready"] ?? 0));
  const sorted = [...queues].sort((a, b) => (b.counts["ready"] ?? 0) - (a.counts["ready"] ?? 0)).slice(0, 12);
  if (queues.length === 0) return <Panel title="Queues"><Empty title="There are no jobs yet">Enqueue one: in Python, with dray enqueue TASK, or POST /api/jobs.</Empty></Panel>;
  return (
    <Panel title="Queues" actions={<Link to="/queues">All {count(queues.length)}</Link>}>
      <div class="scroll">
        <table>
          <thead><tr><th scope="col">Queue</th><th scope="col" class="grow">Ready</th><th scope="col" class="number">Oldest</th><th scope="col" class="number">Running</th><th scope="col" class="number">Dead</th><th scope="col">State</th></tr></thead>
          <tbody>
            {sorted.map((queue) => (
              <tr key={queue.name}>
                <td><Link to={pathOf("/jobs", { queue: queue.name })}>{queue.name}</Link></td>
                <td class="grow"><div class="depth"><Bar share={(queue.counts["ready"] ?? 0) / most} label={`${count(queue.counts["ready"] ?? 0)} ready`} /><span>{brief(queue.counts["ready"] ?? 0)}</span></div></td>
                <td class="number">{queue.oldest_ready_at ? duration(since(queue.oldest_ready_at, now)) : "—"}</td>
                <td class="number">{brief(queue.counts["running"] ?? 0)}</td>
                <td class="number">{brief(queue.counts["dead"] ?? 0)}</td>
                <td>{queue.paused ? <State name="paused" /> : queue.workers > 0 ? <span class="muted">{count(queue.workers)} {queue.workers === 1 ? "worker" : "workers"}</span> : <span class="muted">no worker</span>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}
