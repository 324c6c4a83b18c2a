// The places of a flow's nodes: columns by the longest way from a start, rows near the inputs.
import type { FlowNode } from "./api";

export interface Placed {
  node: FlowNode;
  column: number;
  row: number;
}

export function place(nodes: FlowNode[], edges: string[][]): Placed[] {
  const inputs = new Map<string, string[]>(nodes.map((node) => [node.name, []]));
  for (const [from, to] of edges) if (from !== undefined && to !== undefined && inputs.has(from)) inputs.get(to)?.push(from);
  const columns = new Map<string, number>();
  // A flow has no circle and its nodes come after their inputs; a few passes settle any other order.
  for (let pass = 0, changed = true; changed && pass < nodes.length; pass++) {
    changed = false;
    for (const node of nodes) {
      const column = Math.max(-1, ...(inputs.get(node.name) ?? []).map((name) => columns.get(name) ?? 0)) + 1;
      if (columns.get(node.name) !== column) {
        columns.set(node.name, column);
        changed = true;
      }
    }
  }
  const found: Placed[] = [];
  const rows = new Map<string, number>();
  for (let column = 0, left = nodes; left.length > 0; column++) {
    const here = left.filter((node) => columns.get(node.name) === column);
    left = left.filter((node) => columns.get(node.name) !== column);
    const wish = (node: FlowNode) => {
      const above = (inputs.get(node.name) ?? []).map((name) => rows.get(name) ?? 0);
      return above.length === 0 ? 0 : above.reduce((sum, row) => sum + row, 0) / above.length;
    };
    here.sort((a, b) => wish(a) - wish(b)).forEach((node, row) => {
      rows.set(node.name, row);
      found.push({ node, column, row });
    });
  }
  return found;
}
