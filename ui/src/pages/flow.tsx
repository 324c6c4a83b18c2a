// One flow: its graph in layers, or a table of its nodes if they are many.
import { useState } from "preact/hooks";
import { call, root, type Flow, type FlowNode } from "../api";
import { count, counted, duration } from "../format";
import { useLoad } from "../hooks";
import { place as placeNodes } from "../layers";
import { Link, jobPath, navigate, type Place } from "../router";
import { attempt, Button, Confirm, Empty, Facts, Heading, Panel, Shown, State, When } from "../ui";

const GRAPH_MAX = 200;
const ROWS_MAX = 1000;
const WIDTH = 190;
const HEIGHT = 48;
const GAP_X = 60;
const GAP_Y = 16;

export default function FlowPage({ place }: { place: Place }) {
  const id = place.parts[1] ?? "";
  const loaded = useLoad(`flow ${id}`, (signal) => call("get", "/api/flows/{id}", { path: { id }, signal }));
  if (loaded.error?.status === 404) return <><Heading title="Flow" /><Empty title="There is no such flow">It never was, or its record is not kept any more. <Link to="/flows">See all flows</Link></Empty></>;
  return <Shown loaded={loaded}>{(flow) => <Details flow={flow} reload={loaded.reload} />}</Shown>;
}

function Details({ flow, reload }: { flow: Flow; reload: () => void }) {
  const [cancelling, setCancelling] = useState(false);
  const [table, setTable] = useState(flow.nodes.length > GRAPH_MAX);
  const path = { id: flow.id };
  const retry = async () => {
    await attempt(() => call("post", "/api/flows/{id}/retry", { path }), "Dead nodes run again");
    reload();
  };
  const counts = Object.entries(flow.counts).filter(([, n]) => n > 0);
  return (
    <>
      <Heading title={flow.name}>
        {flow.nodes.length <= GRAPH_MAX && <Button onClick={() => setTable(!table)}>{table ? "Graph" : "Table"}</Button>}
        {flow.status === "failed" && <Button kind="main" needs="admin" onClick={() => void retry()}>Retry what failed</Button>}
        {flow.status === "running" && <Button kind="danger" needs="submit" onClick={() => setCancelling(true)}>Cancel</Button>}
      </Heading>
      <div class="subtitle"><State name={flow.status} /> <code class="id">{flow.id}</code> {counts.map(([state, n]) => <span key={state} class="muted">{count(n)} {state}</span>)}</div>
      <Panel title={table ? "Nodes" : "Graph"} class={table ? "flush" : ""}>{table ? <Nodes flow={flow} /> : <Graph flow={flow} />}</Panel>
      <Panel title="Details"><Facts rows={[["Created", <When at={flow.created_at} />], ["Finished", <When at={flow.finished_at} none="not yet" />], ["Nodes", `${count(flow.nodes.length)}${flow.truncated ? " and more" : ""}`], ...(flow.key ? [["Key", flow.key] as [string, string]] : []), ...(flow.reason ? [["Reason", flow.reason] as [string, string]] : [])]} /></Panel>
      {cancelling && <Confirm title="Cancel this flow?" text="What has not started never will; what runs is asked to stop." button="Cancel it" close={() => setCancelling(false)} act={() => call("post", "/api/flows/{id}/cancel", { path, body: {} }).then(reload)} />}
    </>
  );
}

/** What stands below a node's name: its state, or the items of a map. */
function summary(node: FlowNode): string {
  if (node.items) {
    const total = Object.values(node.items).reduce((sum, n) => sum + n, 0);
    const failed = node.items["dead"] ?? 0;
    const done = node.items["succeeded"] ?? 0;
    if (total > 0) return `× ${count(total)}: ${failed > 0 ? `${count(failed)} failed, ` : ""}${count(done)} done`;
  }
  if (node.skipped) return "skipped";
  const took = node.started_at && node.finished_at ? `, ${duration((Date.parse(node.finished_at) - Date.parse(node.started_at)) / 1000)}` : "";
  return node.status + took;
}

const cut = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Graph({ flow }: { flow: Flow }) {
  const placed = placeNodes(flow.nodes, flow.edges);
  const at = new Map(placed.map((one) => [one.node.name, { x: one.column * (WIDTH + GAP_X) + 2, y: one.row * (HEIGHT + GAP_Y) + 2 }]));
  const width = Math.max(...placed.map((one) => one.column + 1)) * (WIDTH + GAP_X) - GAP_X + 4;
  const height = Math.max(...placed.map((one) => one.row + 1)) * (HEIGHT + GAP_Y) - GAP_Y + 4;
  const open = (event: MouseEvent, id: string) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    navigate(jobPath(id));
  };
  return (
    <div class="graph" tabIndex={0} role="region" aria-label={`Graph of ${counted(flow.nodes.length, "node")}`}>
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
        {flow.edges.map(([from, to]) => {
          const a = at.get(from ?? "");
          const b = at.get(to ?? "");
          if (!a || !b) return null;
          const [x, y, u, v] = [a.x + WIDTH, a.y + HEIGHT / 2, b.x, b.y + HEIGHT / 2];
          return <path key={`${from} ${to}`} class="edge" d={`M${x} ${y}C${x + GAP_X / 2} ${y} ${u - GAP_X / 2} ${v} ${u} ${v}`} />;
        })}
        {placed.map(({ node }) => {
          const { x, y } = at.get(node.name) as { x: number; y: number };
          return (
            <a key={node.name} href={root + jobPath(node.id)} onClick={(event: MouseEvent) => open(event, node.id)} aria-label={`${node.name} ${summary(node)}`}>
              {node.is_map && <rect x={x + 4} y={y - 4 + 2} width={WIDTH - 4} height={HEIGHT - 2} rx="8" />}
              <rect x={x} y={y} width={WIDTH} height={HEIGHT} rx="8" />
              <circle class={`dot ${node.skipped ? "" : node.status}`} cx={x + 16} cy={y + 18} r="5" />
              <text x={x + 28} y={y + 22}>{cut(node.name, 22)}</text>{" "}
              <text class="sub" x={x + 28} y={y + 38}>{cut(summary(node), 26)}</text>
            </a>
          );
        })}
      </svg>
    </div>
  );
}

function Nodes({ flow }: { flow: Flow }) {
  return (
    <>
      <div class="scroll"><table class="small">
        <thead><tr><th scope="col">Node</th><th scope="col">Task</th><th scope="col">Queue</th><th scope="col">State</th><th scope="col">Items, reason</th></tr></thead>
        <tbody>{flow.nodes.slice(0, ROWS_MAX).map((node) => <tr key={node.name}><th scope="row"><Link to={jobPath(node.id)}>{node.name}</Link></th><td>{node.task}</td><td>{node.queue}</td><td><State name={node.skipped ? "skipped" : node.status} /></td><td class="muted">{node.items ? summary(node) : node.reason}</td></tr>)}</tbody>
      </table></div>
      {flow.nodes.length > ROWS_MAX && <p class="muted lead">The first {count(ROWS_MAX)} of {count(flow.nodes.length)} nodes.</p>}
    </>
  );
}
