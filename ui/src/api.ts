// The HTTP API, typed by its OpenAPI document (`make ui` writes schema.d.ts from it).
import type { components, paths } from "./schema";

type Schemas = components["schemas"];
export type Job = Schemas["JobOut"];
export type Run = Schemas["RunOut"];
export type Queue = Schemas["QueueOut"];
export type Worker = Schemas["WorkerOut"];
export type Schedule = Schemas["ScheduleOut"];
export type Session = Schemas["SessionOut"];
export type TaskStats = Schemas["TaskOut"];
export type Guarantees = Schemas["GuaranteesOut"];
export type ApiKey = Schemas["KeyOut"];
export type AuditEntry = Schemas["AuditEntryOut"];
export type Why = Schemas["WhyOut"];
export type Changed = Schemas["Changed"];
export type JobWithSteps = Schemas["JobWithSteps"];
export type FlowRow = Schemas["FlowRow"];
export type Flow = Schemas["FlowOut"];
export type FlowNode = Schemas["FlowNodeOut"];
export type Bulk = Schemas["BulkIn"];

/** The path below which this page is served, without a slash at its end. */
export const root = (document.querySelector('meta[name="dray-root"]')?.getAttribute("content") ?? "").replace(/\/$/, "");

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly field: string | null = null) {
    super(message);
  }
  /** The server or its broker cannot be reached now. */
  get away(): boolean {
    return this.status === 0 || this.status >= 502;
  }
}

type Method = "get" | "post" | "put" | "delete";
type Reply<O> = O extends { responses: infer R }
  ? { [S in keyof R]: S extends 200 | 201 ? (R[S] extends { content: { "application/json": infer B } } ? B : never) : never }[keyof R]
  : never;
type BodyOf<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : never;
type QueryOf<O> = O extends { parameters: { query?: infer Q } } ? Q : never;
type PathOf<O> = O extends { parameters: { path: infer P } } ? P : never;
interface Given<O> {
  path?: PathOf<O>;
  query?: QueryOf<O>;
  body?: BodyOf<O>;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** Call a route of the API. Errors of any kind are an `ApiError`. */
export async function call<M extends Method, P extends { [K in keyof paths]: paths[K] extends { [N in M]: object } ? K : never }[keyof paths]>(
  method: M,
  path: P,
  given: Given<paths[P][M]> = {},
): Promise<Reply<paths[P][M]>> {
  return (await request(method, urlOf(path as string, given.path as object | undefined, given.query as object | undefined), given)) as Reply<paths[P][M]>;
}

function urlOf(path: string, values: object = {}, query: object = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String((values as Record<string, unknown>)[name])));
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return filled + (text ? `?${text}` : "");
}

/** Call any path, for routes that this server may not have. */
export async function request(method: string, url: string, given: { body?: unknown; signal?: AbortSignal; headers?: Record<string, string> } = {}): Promise<unknown> {
  const headers: Record<string, string> = { ...given.headers };
  if (given.body !== undefined) headers["content-type"] = "application/json";
  let reply: Response;
  try {
    reply = await fetch(root + url, {
      method: method.toUpperCase(),
      headers,
      body: given.body === undefined ? undefined : JSON.stringify(given.body),
      signal: given.signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (given.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  const text = await reply.text();
  let value: unknown = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(reply.status, "unreadable", `The reply (${reply.status}) cannot be read.`);
  }
  if (reply.ok) return value;
  const error = (value as { error?: { code: string; message: string; field: string | null } } | null)?.error;
  throw new ApiError(reply.status, error?.code ?? "failed", error?.message ?? `The request failed (${reply.status}).`, error?.field ?? null);
}
