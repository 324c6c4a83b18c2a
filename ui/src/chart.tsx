// Line charts over time, drawn by uPlot; a table of their latest values is what a screen reader gets.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock } from "./format";

export interface Line {
  name: string;
  color: string;
  fill?: boolean;
}

export interface ChartProps {
  columns: (number | null)[][];
  lines: Line[];
  text: (value: number) => string;
  label: string;
  height?: number;
  /** Moments to mark, in seconds since the epoch: workers that started, as after a deployment. */
  marks?: { at: number; text: string }[];
}

const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export default function Chart({ columns, lines, text, label, height = 150, marks = [] }: ChartProps) {
  const at = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef({ columns, text, marks });
  latest.current = { columns, text, marks };
  useEffect(() => {
    const box = at.current as HTMLDivElement;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(box.clientWidth, height, lines, (value) => latest.current.text(value), () => latest.current.marks), latest.current.columns as uPlot.AlignedData, box);
    };
    draw();
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
    sizes.observe(box);
    const theme = new MutationObserver(draw);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    return () => {
      sizes.disconnect();
      theme.disconnect();
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [lines.map((line) => line.name).join()]);
  useEffect(() => plot.current?.setData(columns as uPlot.AlignedData), [columns]);
  const last = columns.slice(1).map((values) => [...values].reverse().find((value) => value !== null) ?? null);
  return (
    <div class="chart" role="img" aria-label={`${label}: ${lines.map((line, n) => `${line.name} ${last[n] === null || last[n] === undefined ? "none" : text(last[n] as number)}`).join(", ")}`}>
      <div ref={at} style={{ height: `${height}px` }} />
    </div>
  );
}

function options(width: number, height: number, lines: Line[], text: (value: number) => string, marks: () => { at: number; text: string }[]): uPlot.Options {
  const axis = { stroke: css("--muted"), font: "11px system-ui, sans-serif", grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    padding: [8, 8, 0, 0],
    scales: { x: { time: true }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [
      { ...axis, space: 90, values: (_, times) => times.map((time) => moment(time, (times.at(-1) ?? 0) - (times[0] ?? 0))), size: 22 },
      { ...axis, space: 34, size: 56, values: (_, values) => values.map(text) },
    ],
    series: [{}, ...lines.map((line) => ({ label: line.name, stroke: css(line.color), width: 2, fill: line.fill ? `${css(line.color)}22` : undefined, points: { show: false }, spanGaps: true }))],
    hooks: { draw: [(plot) => marks().forEach((mark) => drawMark(plot, mark.at))] },
  };
}

/** The text of a tick: seconds only matter in short charts, dates in long ones. */
function moment(time: number, span: number): string {
  if (span > 2 * 86_400) return new Date(time * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return span > 1200 ? clock(time * 1000).slice(0, 5) : clock(time * 1000);
}

function drawMark(plot: uPlot, at: number): void {
  const x = plot.valToPos(at, "x", true);
  if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) return;
  plot.ctx.save();
  plot.ctx.strokeStyle = css("--accent");
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.beginPath();
  plot.ctx.moveTo(x, plot.bbox.top);
  plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
  plot.ctx.stroke();
  plot.ctx.restore();
}
