// The history, which a server has only with the setting `history_url`: its routes, and what they return.
import { ApiError, request } from "./api";

export interface Point {
  at: string;
  succeeded: number;
  failed: number;
  took_p95: number;
  waited_p95: number;
}
export interface Stats {
  source: "history" | "broker";
  note: string;
  step: number;
  points: Point[];
}
export interface ErrorGroup {
  fingerprint: string;
  task: string;
  queues: string[];
  type: string;
  message: string;
  count: number;
  first_seen: string;
  last_seen: string;
  last_job: string;
  versions: string[];
  hours: number[];
}
export interface HistoryJob {
  id: string;
  task: string;
  queue: string;
  state: string;
  attempt: number;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  worker: string | null;
  args: Record<string, unknown> | null;
  result: unknown;
  error_type: string | null;
  error: string | null;
  traceback: string | null;
  reason: string | null;
}
export interface HistoryAttempt {
  run: number;
  started_at: string;
  ended_at: string | null;
  outcome: string;
  worker: string | null;
  version: string | null;
  error_type: string | null;
  error: string | null;
  traceback: string | null;
}

export const NONE = "There is no history: the setting history_url keeps one, for charts of days, searches and old jobs.";

/** What the history answers; null if the server has none. */
async function ask<T>(path: string, signal: AbortSignal): Promise<T | null> {
  try {
    return (await request("get", path, { signal })) as T;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return null;
    throw error;
  }
}

export async function readStats(window: string, signal: AbortSignal): Promise<Stats | null> {
  const found = await ask<Stats>(`/api/history/stats?window=${window}`, signal);
  return found?.source === "history" ? found : null;
}

export async function readErrors(window: string, signal: AbortSignal): Promise<ErrorGroup[] | null> {
  const found = await ask<{ errors: ErrorGroup[]; source: string }>(`/api/errors?window=${window}`, signal);
  return found?.source === "history" ? found.errors : null;
}

export const search = (text: string, cursor: string | null, signal: AbortSignal): Promise<{ jobs: HistoryJob[]; cursor: string | null } | null> =>
  ask(`/api/history?${new URLSearchParams({ q: text, limit: "50", ...(cursor ? { cursor } : {}) }).toString()}`, signal);

export const readJob = (id: string, signal: AbortSignal): Promise<{ jobs: HistoryJob[]; attempts: HistoryAttempt[] } | null> => ask(`/api/jobs/${encodeURIComponent(id)}/history`, signal);

/** Points as columns of a chart; steps in which nothing ended are zero. */
export function columns(stats: Stats, seconds: number, now: number, values: ((point: Point | undefined) => number | null)[]): (number | null)[][] {
  const step = Math.max(1, stats.step);
  const found = new Map(stats.points.map((point) => [Math.floor(Date.parse(point.at) / 1000 / step), point]));
  const times: number[] = [];
  const lines: (number | null)[][] = values.map(() => []);
  const end = Math.floor(now / 1000 / step);
  for (let place = end - Math.ceil(seconds / step); place <= end; place++) {
    times.push(place * step);
    values.forEach((value, n) => lines[n]?.push(value(found.get(place))));
  }
  return [times, ...lines];
}
