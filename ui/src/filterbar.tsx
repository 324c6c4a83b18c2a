// The filter bar: text with completion; Enter makes it the URL.
import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "./api";
import { fromText, looksLikeId, suggest, toText, type Filter } from "./filter";
import { useLoad } from "./hooks";
import { jobPath, navigate, pathOf } from "./router";

export function FilterBar({ filter }: { filter: Filter }) {
  const shown = toText(filter);
  const [text, setText] = useState(shown);
  const [open, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => setText(shown), [shown]);
  const known = useLoad("known", async (signal) => {
    const [queues, tasks] = await Promise.all([call("get", "/api/queues", { signal }), call("get", "/api/tasks", { signal })]);
    return { queues: queues.queues.map((queue) => queue.name), tasks: tasks.tasks.map((task) => task.task) };
  }, null);
  const found = open ? suggest(text, known.data ?? { queues: [], tasks: [] }) : [];
  const go = (value: string) => {
    setOpen(false);
    if (looksLikeId(value)) return navigate(jobPath(value.trim()));
    navigate(pathOf("/jobs", fromText(value)));
  };
  const choose = (value: string) => {
    setText(value);
    setChosen(-1);
    field.current?.focus();
    if (!value.endsWith(":")) go(value);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      setChosen((n) => (found.length === 0 ? -1 : (n + (event.key === "ArrowDown" ? 1 : -1) + found.length) % found.length));
    } else if (event.key === "Escape") {
      if (open) setOpen(false);
      else field.current?.blur();
    } else if (event.key === "Tab" && found.length > 0 && text.trim() !== "" && !event.shiftKey) {
      event.preventDefault();
      choose((found[Math.max(0, chosen)] as { text: string }).text);
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    const picked = found[chosen];
    if (picked) choose(picked.text);
    else go(text);
  };
  return (
    <form class="filter" role="search" onSubmit={submit}>
      <input
        ref={field}
        role="combobox"
        aria-label="Filter jobs"
        aria-expanded={found.length > 0}
        aria-controls="suggestions"
        aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 ? `suggestion-${chosen}` : undefined}
        placeholder="state:dead queue:email task:… tag:… since:1h, words, or an id"
        value={text}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => { setText(event.currentTarget.value); setOpen(true); setChosen(-1); }}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={key}
      />
      <div id="suggestions" role="listbox" aria-label="Suggestions" class={found.length > 0 ? "suggestions" : "suggestions none"}>
        {found.map((one, n) => (
          <div key={one.label} id={`suggestion-${n}`} role="option" aria-selected={n === chosen} onMouseDown={(event) => { event.preventDefault(); choose(one.text); }}>
            <span>{one.label}</span><small>{one.hint}</small>
          </div>
        ))}
      </div>
    </form>
  );
}
