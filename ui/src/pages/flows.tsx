// Flows: jobs with dependencies, as a list with progress.
import { call, type FlowRow } from "../api";
import { count } from "../format";
import { useLoad } from "../hooks";
import { Link, pathOf, type Place } from "../router";
import { Bar, Empty, Heading, Panel, Shown, State, When } from "../ui";

const STATES = ["running", "succeeded", "failed", "cancelled"] as const;
const SHOWN = 100;

export const flowPath = (id: string): string => `/flows/${encodeURIComponent(id)}`;

export default function Flows({ place }: { place: Place }) {
  const state = STATES.find((one) => one === place.query.get("state"));
  const loaded = useLoad(`flows ${state ?? ""}`, (signal) => call("get", "/api/flows", { query: { state, limit: SHOWN }, signal }));
  return (
    <>
      <Heading title="Flows">
        <nav class="tabs" aria-label="State">
          <Link to="/flows" aria-current={state === undefined ? "true" : undefined}>all</Link>
          {STATES.map((one) => <Link key={one} to={pathOf("/flows", { state: one })} aria-current={state === one ? "true" : undefined}>{one}</Link>)}
        </nav>
      </Heading>
      <Shown loaded={loaded}>
        {({ flows, cursor }) => (
          <Panel class="flush">
            {flows.length === 0 && <Empty title={state ? `No flow is ${state}` : "There are no flows yet"}>chain(fetch.call(url), parse.call()).enqueue() makes one, and app.flow("order") a graph.</Empty>}
            {flows.length > 0 && (
              <div class="scroll"><table>
                <thead><tr><th scope="col">Flow</th><th scope="col">State</th><th scope="col" class="grow">Progress</th><th scope="col" class="number">Nodes</th><th scope="col">Created</th><th scope="col">Finished</th></tr></thead>
                <tbody>{flows.map((flow, n) => <Row key={flow.id} flow={flow} follow={n < 20} />)}</tbody>
              </table></div>
            )}
            {cursor !== null && <p class="muted lead">The newest {flows.length}; filter by state to see others.</p>}
          </Panel>
        )}
      </Shown>
    </>
  );
}

function Row({ flow, follow }: { flow: FlowRow; follow: boolean }) {
  return (
    <tr>
      <th scope="row"><Link to={flowPath(flow.id)}>{flow.name}</Link><div class="muted">{flow.tasks.slice(0, 4).join(", ")}{flow.tasks.length > 4 && " …"}</div></th>
      <td><State name={flow.status} />{flow.reason && <div class="muted">{flow.reason}</div>}</td>
      <td class="grow">{flow.status === "running" && follow ? <Progress id={flow.id} /> : flow.status === "succeeded" ? <Bar share={1} label="All is done" class="good" /> : null}</td>
      <td class="number">{count(flow.nodes)}</td>
      <td><When at={flow.created_at} /></td>
      <td><When at={flow.finished_at} /></td>
    </tr>
  );
}

/** The share of a running flow's jobs that have ended. */
function Progress({ id }: { id: string }) {
  const loaded = useLoad(`flow ${id}`, (signal) => call("get", "/api/flows/{id}", { path: { id }, signal }));
  if (!loaded.data) return null;
  const { counts } = loaded.data;
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const done = (counts["succeeded"] ?? 0) + (counts["cancelled"] ?? 0) + (counts["dead"] ?? 0);
  return <Bar share={total ? done / total : 0} label={`${count(done)} of ${count(total)} jobs ended`} />;
}
