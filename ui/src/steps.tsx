// The steps that a durable job remembers.
import { useState } from "preact/hooks";
import { call, type JobWithSteps } from "./api";
import { Link, jobPath, navigate } from "./router";
import { Button, Confirm, Json, Panel, State, toast, When } from "./ui";

const STATES: Record<string, string> = { done: "succeeded", failed: "dead", "timed out": "dead", sleeping: "scheduled", trying: "retrying", began: "running" };

export function Steps({ job }: { job: JobWithSteps }) {
  const [from, setFrom] = useState<string | null>(null);
  const rerun = async () => {
    const made = await call("post", "/api/jobs/{id}/rerun", { path: { id: job.id }, body: { step: from } });
    toast("A new job is on its way");
    navigate(jobPath(made.id));
  };
  if (job.steps.length === 0) return null;
  return (
    <Panel title="Steps">
      <ol class="steps">
        {job.steps.slice(0, 500).map((step) => (
          <li key={step.id}>
            <div class="step"><State name={STATES[step.status] ?? step.status} label={step.status} /> <strong>{step.id}</strong> <When at={step.at} />{step.tries > 1 && <span class="muted">{step.tries} tries</span>}{step.job && <Link to={jobPath(step.job)}>its job</Link>}{step.until && <span class="muted">until <When at={step.until} /></span>}{step.undo && <span class="muted">undo: {step.undo}</span>}<Button kind="quiet" needs="admin" onClick={() => setFrom(step.id)} aria-label={`Run again from here: ${step.id}`}>Run again from here</Button></div>
            {step.value !== null && <Json value={step.value} label={`Value of ${step.id}`} />}
            {step.error && <p class="bad">{step.error.type}: {step.error.message}</p>}
          </li>
        ))}
      </ol>
      {from !== null && <Confirm title={`Run again from ${from}?`} danger={false} text="A new job begins with what this one remembers of the steps before, and goes on from there." button="Run again" close={() => setFrom(null)} act={rerun} />}
    </Panel>
  );
}
