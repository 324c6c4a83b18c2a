// A job's life as a waterfall: waits and runs, one below the other, over time.
import type { Job } from "./api";
import { dateTime, duration } from "./format";

export interface Span {
  name: string;
  kind: "wait" | "delay" | "succeeded" | "failed" | "running" | "other";
  from: number;
  to: number;
  note: string;
}

/** The waits and runs of a job, in order, up to `now` while it goes on. */
export function spans(job: Job, now: number): Span[] {
  const found: Span[] = [];
  let at = Date.parse(job.created_at);
  const end = job.finished_at ? Date.parse(job.finished_at) : now;
  const runs = job.run_history;
  const first = runs[0] ? Date.parse(runs[0].started_at) : end;
  const due = job.due_at ? Date.parse(job.due_at) : null;
  if (due !== null && due > at + 5 && (runs[0] === undefined || due <= first)) {
    found.push({ name: "delayed", kind: "delay", from: at, to: Math.min(due, end), note: "until it was due" });
    at = Math.min(due, end);
  }
  for (const run of runs) {
    const from = Date.parse(run.started_at);
    if (from > at) found.push({ name: found.some((one) => one.name.startsWith("run")) ? "wait for the next try" : "wait in the queue", kind: found.some((one) => one.name.startsWith("run")) ? "delay" : "wait", from: at, to: from, note: "" });
    const to = run.ended_at ? Date.parse(run.ended_at) : now;
    found.push({ name: `run ${run.number}`, kind: kindOf(run.outcome), from, to, note: [run.outcome.replace("_", " "), run.error, run.worker ? `on ${run.worker}` : ""].filter(Boolean).join(" · ") });
    at = Math.max(at, to);
  }
  if (!job.finished_at && job.status !== "running" && now > at) {
    found.push({ name: job.status === "ready" ? "wait in the queue" : job.status === "retrying" ? "wait for the next try" : job.status, kind: job.status === "ready" ? "wait" : "delay", from: at, to: now, note: "now" });
  } else if (job.finished_at && runs.length === 0 && end > at) {
    found.push({ name: "wait in the queue", kind: "wait", from: at, to: end, note: job.reason ?? "" });
  }
  return found;
}

function kindOf(outcome: string): Span["kind"] {
  if (outcome === "succeeded" || outcome === "running") return outcome;
  return outcome === "failed" || outcome === "crashed" || outcome === "lost" ? "failed" : "other";
}

export function Waterfall({ job, now }: { job: Job; now: number }) {
  const all = spans(job, now);
  if (all.length === 0) return <p class="muted">Nothing has happened yet.</p>;
  const start = Math.min(...all.map((one) => one.from));
  const length = Math.max(1, Math.max(...all.map((one) => one.to)) - start);
  const cut = (job.runs ?? 0) > job.run_history.length;
  return (
    <>
      {cut && <p class="muted">The newest {job.run_history.length} of {job.runs} runs.</p>}
      <ol class="waterfall" aria-label="What happened, over time">
        {all.map((one, n) => (
          <li key={n} title={`${dateTime(one.from)} to ${dateTime(one.to)}`}>
            <span class="name">{one.name}</span>
            <span class="track"><i class={one.kind} style={{ left: `${(100 * (one.from - start)) / length}%`, width: `${Math.max(0.6, (100 * (one.to - one.from)) / length)}%` }} /></span>
            <span class="number">{duration((one.to - one.from) / 1000)}</span>
            {one.note && <span class="note">{one.note}</span>}
          </li>
        ))}
      </ol>
      <p class="muted">From {dateTime(start)}, {duration(length / 1000)} in all.</p>
    </>
  );
}
