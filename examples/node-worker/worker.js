// A dray worker: fetches jobs, runs them, and says what became of each.
//
// Rules that keep every job: it is acked only after its work is done; while it runs its lease is extended; when the
// lease is lost, what the run came to is dropped, because somebody else has the job by then.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const { status } = grpc;
const PROTOS = ['./dray.proto', '../../src/dray/serve/proto/dray/v1/dray.proto'];
const AGAIN = new Set([status.UNAVAILABLE, status.DEADLINE_EXCEEDED, status.RESOURCE_EXHAUSTED]);
const CALL_SECONDS = 10;
const LONGEST_PAUSE = 5;

/** Throw it to give a job up at once: it is dead, with this message as the reason. */
export class Reject extends Error {}

/** A client of dray.v1.TaskQueue: `await client.call('Enqueue', { task: 'resize' })`. */
export class Client {
  constructor({ address, key, rootCert }) {
    const file = PROTOS.map((path) => fileURLToPath(new URL(path, import.meta.url))).find(existsSync);
    const loaded = protoLoader.loadSync(file, { keepCase: true, enums: String, longs: Number, defaults: true });
    const { TaskQueue } = grpc.loadPackageDefinition(loaded).dray.v1;
    const credentials = rootCert ? grpc.credentials.createSsl(rootCert) : grpc.credentials.createInsecure();
    // Pings: a server that vanished without a word is noticed.
    this.stub = new TaskQueue(address, credentials, { 'grpc.keepalive_time_ms': 20_000 });
    this.metadata = new grpc.Metadata();
    if (key) this.metadata.set('authorization', `Bearer ${key}`);
  }

  /** The answer to a call; `signal` breaks it off. */
  call(method, request, { seconds = CALL_SECONDS, signal } = {}) {
    return new Promise((resolve, reject) => {
      const deadline = new Date(Date.now() + seconds * 1000);
      const call = this.stub[method](request, this.metadata, { deadline }, (error, answer) => {
        signal?.removeEventListener('abort', cancel);
        error ? reject(error) : resolve(answer);
      });
      const cancel = () => call.cancel();
      signal?.addEventListener('abort', cancel, { once: true });
    });
  }

  close() {
    this.stub.close();
  }
}

/**
 * Serves queues with functions by the names of their tasks:
 *
 *   new Worker({ address: '127.0.0.1:9090', queues: ['images'], tasks: { resize: async ([url], { width }) => … } })
 *
 * A function is called with the job's arguments (an array), its keyword arguments (an object) and
 * `{ job, signal, progress }`; what it returns is the job's result. `signal` is aborted when the job was
 * cancelled, when its lease is lost and when the worker stops.
 */
export class Worker {
  constructor({ queues = ['default'], tasks, concurrency = 4, lease = 30, onSettled = () => {}, ...connection }) {
    Object.assign(this, { queues, tasks, concurrency, lease, onSettled });
    this.client = new Client(connection);
    this.running = new Map(); // job id -> { job, stop, ended }
    this.stopping = new AbortController();
  }

  /** Work until `stop` is called. */
  run() {
    this.loop = this.serve();
    return this.loop;
  }

  async serve() {
    let pause = 0.1;
    while (!this.stopping.signal.aborted) {
      try {
        const jobs = await this.fetch();
        pause = 0.1;
        for (const job of jobs) await this.accept(job);
        if (this.running.size >= this.concurrency) await Promise.race(this.ends());
      } catch (error) {
        if (this.stopping.signal.aborted) break;
        if (!AGAIN.has(error.code)) throw error;
        await sleep(pause);
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      }
    }
  }

  /** Fetch nothing more, let jobs finish for `grace` seconds, and give back what is left. */
  async stop(grace = 30) {
    this.stopping.abort();
    const over = this.loop.catch(() => {}).then(() => this.all());
    await Promise.race([over, sleep(grace, { unref: true })]);
    for (const { stop } of this.running.values()) stop.abort('leaving');
    await over;
    this.client.close();
  }

  async fetch() {
    const request = {
      queues: this.queues,
      tasks: Object.keys(this.tasks),
      limit: this.concurrency - this.running.size,
      lease: this.lease,
      wait: 20,
    };
    const { jobs } = await this.client.call('FetchAndHold', request, { seconds: 30, signal: this.stopping.signal });
    return jobs;
  }

  /** Begin a job, unless it came too late; a suspect alone: if it kills this process, it is to blame and no other. */
  async accept(job) {
    const { id, token } = job;
    if (this.stopping.signal.aborted || (job.suspect && this.running.size)) {
      await this.settle(job, ['Nack', { id, token, kind: 'NACK_KIND_GIVE_BACK' }]);
    } else {
      this.begin(job);
    }
    if (job.suspect) await this.all();
  }

  ends() {
    return [...this.running.values()].map(({ ended }) => ended);
  }

  async all() {
    await Promise.all(this.ends());
  }

  begin(job) {
    const stop = new AbortController();
    const run = { job, stop };
    run.ended = this.perform(job, stop).finally(() => this.running.delete(job.id));
    this.running.set(job.id, run);
  }

  async perform(job, stop) {
    const { id, token } = job;
    const beat = setInterval(() => this.extend(job, stop), (this.lease * 1000) / 3);
    let verdict;
    try {
      const result = await this.work(job, stop.signal);
      verdict = ['Ack', { id, token, result_json: JSON.stringify(result ?? null) }];
    } catch (error) {
      verdict = ['Nack', { id, token, ...failure(error, stop.signal) }];
    }
    try {
      if (stop.signal.reason !== 'lost') await this.settle(job, verdict);
    } finally {
      clearInterval(beat);
    }
  }

  async work(job, signal) {
    if (!job.args_json) throw new Reject(`its arguments are ${job.codec}, not JSON`);
    const context = { job, signal, progress: (done, total, note = '') => this.extend(job, null, { done, total, note }) };
    const stopped = new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new Error(signal.reason)), { once: true });
    });
    const work = this.tasks[job.task](JSON.parse(job.args_json), JSON.parse(job.kwargs_json), context);
    return Promise.race([work, stopped]);
  }

  async extend({ id, token }, stop, progress) {
    try {
      const answer = await this.client.call('Extend', { id, token, lease: this.lease, progress });
      if (answer.cancelling) stop?.abort('cancelled');
    } catch (error) {
      if (error.code === status.FAILED_PRECONDITION) stop?.abort('lost');
      // Anything else may pass: the next beat comes before the lease is over.
    }
  }

  /** Say it until it is heard; saying it twice does no harm. */
  async settle(job, [method, request]) {
    for (let pause = 0.1; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      try {
        const answer = await this.client.call(method, request);
        this.onSettled(job, method, answer.status);
        return;
      } catch (error) {
        if (error.code === status.FAILED_PRECONDITION || error.code === status.NOT_FOUND) return; // not ours any more
        if (!AGAIN.has(error.code)) return void console.error(`${method} of ${job.id}: ${error.message}`);
        await sleep(pause);
      }
    }
  }
}

function failure(error, signal) {
  if (signal.aborted) return { kind: 'NACK_KIND_GIVE_BACK' }; // of a cancelled job, the server makes "cancelled"
  const kind = error instanceof Reject ? 'NACK_KIND_DEAD' : 'NACK_KIND_RETRY';
  const type = error?.constructor?.name ?? 'Error';
  return { kind, error: { type, message: String(error?.message ?? error), traceback: error?.stack ?? '' } };
}

function sleep(seconds, { unref = false } = {}) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    if (unref) timer.unref();
  });
}
