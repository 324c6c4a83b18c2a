// Uses the API through what openapi-typescript makes of its document: submit, wait, cancel.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
const [url = "", key = ""] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

async function submit(job: components["schemas"]["JobIn"]): Promise<string> {
  const { data, error } = await client.POST("/api/jobs", { body: job });
  if (error !== undefined) throw new Error(error.error.message);
  return data.id;
}

const sum = await submit({ task: "add", kwargs: { a: 2, b: 3 }, tags: ["typescript"] });
console.log(sum);
const { data: ended } = await client.GET("/api/jobs/{id}/result", {
  params: { path: { id: sum }, query: { wait: 60 } },
});
console.log(JSON.stringify({ status: ended?.status, result: ended?.result }));

const late = await submit({ task: "add", args: [1], delay: 3600 });
const { data: cancelled } = await client.DELETE("/api/jobs/{id}/cancel", {
  params: { path: { id: late }, query: { reason: "not wanted" } },
});
const { data: shown } = await client.GET("/api/jobs/{id}", { params: { path: { id: late } } });
console.log(JSON.stringify({ changed: cancelled?.changed, status: shown?.status, reason: shown?.reason }));

const { error: refused } = await client.POST("/api/jobs", { body: { task: "no-such-task" } });
console.log(JSON.stringify(refused?.error.field));
