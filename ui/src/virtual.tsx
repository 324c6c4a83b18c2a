// A long list of which only the visible rows are in the page.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const EXTRA = 8; // rows drawn above and below

export interface VirtualProps<T> {
  rows: T[];
  height: number;
  label: string;
  head: ComponentChildren;
  row: (item: T, index: number) => ComponentChildren;
  active: number;
  /** Called when the end comes near. */
  more: () => void;
}

/** A grid whose rows have one height. It scrolls with the page. */
export function VirtualGrid<T>({ rows, height, label, head, row, active, more }: VirtualProps<T>) {
  const body = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 60]);
  const measure = () => {
    const top = body.current?.getBoundingClientRect().top ?? 0;
    const first = Math.max(0, Math.floor(-top / height) - EXTRA);
    const last = Math.min(rows.length, Math.ceil((innerHeight - top) / height) + EXTRA);
    setRange((old) => (old[0] === first && old[1] === last ? old : [first, last]));
    if (last >= rows.length) more();
  };
  const latest = useRef(measure);
  latest.current = measure;
  useLayoutEffect(measure, [rows.length]);
  useEffect(() => {
    const listener = () => latest.current();
    addEventListener("scroll", listener, { passive: true });
    addEventListener("resize", listener);
    return () => {
      removeEventListener("scroll", listener);
      removeEventListener("resize", listener);
    };
  }, []);
  useEffect(() => {
    if (active < 0) return;
    const top = (body.current?.getBoundingClientRect().top ?? 0) + active * height;
    if (top < 120) scrollBy(0, top - 120);
    else if (top + height > innerHeight - 60) scrollBy(0, top + height - innerHeight + 60);
  }, [active]);
  const [first, last] = range;
  return (
    <div class="grid" role="grid" aria-label={label} aria-rowcount={rows.length + 1}>
      <div class="grid-head" role="rowgroup">
        {head}
      </div>
      <div ref={body} role="rowgroup" class="grid-body" style={{ height: `${rows.length * height}px` }}>
        {rows.slice(first, last).map((item, n) => (
          <div key={(item as { id?: string }).id ?? first + n} role="presentation" class="grid-place" style={{ top: `${(first + n) * height}px`, height: `${height}px` }}>
            {row(item, first + n)}
          </div>
        ))}
      </div>
    </div>
  );
}
