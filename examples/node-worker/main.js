// The tasks of this example, and the worker that serves them until a signal stops it.

import { readFileSync } from 'node:fs';
import { Reject, Worker } from './worker.js';

const { DRAY_GRPC = '127.0.0.1:9090', DRAY_KEY, DRAY_CA, DRAY_QUEUES = 'node' } = process.env;

const tasks = {
  // app.using(queue="node").enqueue("words.count", "how many words")
  'words.count': async ([text]) => {
    if (typeof text !== 'string') throw new Reject('a text is needed');
    return text.split(/\s+/).filter(Boolean).length;
  },

  // Takes its time, tells how far it is, and stops when it is told to.
  'words.each': async ([text], { pause = 0.1 }, { progress, signal }) => {
    const words = text.split(/\s+/).filter(Boolean);
    for (const [n, word] of words.entries()) {
      if (signal.aborted) return null;
      await new Promise((resolve) => setTimeout(resolve, pause * 1000));
      await progress(n + 1, words.length, word);
    }
    return words.map((word) => word.toUpperCase());
  },
};

const worker = new Worker({
  address: DRAY_GRPC,
  key: DRAY_KEY,
  rootCert: DRAY_CA && readFileSync(DRAY_CA),
  queues: DRAY_QUEUES.split(','),
  tasks,
  onSettled: (job, method, state) => console.log(`${job.task} ${job.id}: ${state.replace('STATE_', '').toLowerCase()}`),
});

for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => worker.stop());
console.log(`serves ${DRAY_QUEUES} of ${DRAY_GRPC}`);
await worker.run();
