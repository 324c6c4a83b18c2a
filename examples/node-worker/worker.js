// A dray worker: one stream on which jobs come and their outcomes go.
//
// Rules that keep every job: it is acked only after its work is done; a sign of life is sent every third of the lease;
// when the stream is lost, so are its jobs: what their runs came to is dropped, because others have them by then.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const { status } = grpc;
const PROTOS = ['./dray.proto', '../../src/dray/serve/proto/dray/v1/dray.proto'];
/** A stream that ends like this can be opened again; any other error is a mistake that has to be mended. */
const AGAIN = new Set([
  status.OK,
  status.CANCELLED,
  status.UNAVAILABLE,
  status.DEADLINE_EXCEEDED,
  status.RESOURCE_EXHAUSTED,
  status.FAILED_PRECONDITION,
  status.INTERNAL,
]);
const LONGEST_PAUSE = 5;
const ITEMS_MAX = 1000;

/** Throw it to give a job up at once: it is dead, with this message as the reason. */
export class Reject extends Error {}

/** The stub of dray.v1.TaskQueue and the metadata of its calls. */
function connect({ address, key, rootCert }) {
  const file = PROTOS.map((path) => fileURLToPath(new URL(path, import.meta.url))).find(existsSync);
  const loaded = protoLoader.loadSync(file, { keepCase: true, enums: String, longs: Number, defaults: true });
  const { TaskQueue } = grpc.loadPackageDefinition(loaded).dray.v1;
  const credentials = rootCert ? grpc.credentials.createSsl(rootCert) : grpc.credentials.createInsecure();
  const metadata = new grpc.Metadata();
  if (key) metadata.set('authorization', `Bearer ${key}`);
  // Pings: a server that vanished silently is noticed.
  const stub = new TaskQueue(address, credentials, { 'grpc.keepalive_time_ms': 20_000 });
  return { stub, metadata };
}

/**
 * Serves queues with functions by the names of their tasks:
 *
 *   new Worker({ address: '127.0.0.1:9090', queues: ['images'], tasks: { resize: async ([url], { width }) => … } })
 *
 * A function is called with the job's arguments (an array), its keyword arguments (an object) and
 * `{ job, signal, progress }`; what it returns is the job's result. `signal` is aborted when the job was
 * cancelled, when the stream is lost and when the worker stops.
 */
export class Worker {
  constructor({ queues = ['default'], tasks, concurrency = 4, lease = 30, onSettled = () => {}, ...connection }) {
    Object.assign(this, { queues, tasks, concurrency, lease, onSettled });
    this.connection = connect(connection);
    this.stopping = false;
  }

  /** Work until `stop` is called; a stream that ends is opened again. */
  run() {
    this.loop = this.serve();
    return this.loop;
  }

  async serve() {
    for (let pause = 0.1; !this.stopping; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      this.stream = new Stream(this);
      const error = await this.stream.ended;
      if (this.stopping) break;
      if (!AGAIN.has(error.code)) throw error;
      if (this.stream.started) pause = 0.1;
      await sleep(pause);
    }
  }

  /** Take nothing more, let jobs finish for `grace` seconds, and give back what is left. */
  stop(grace = 30) {
    this.stopping = true;
    this.stopped ??= this.leave(grace);
    return this.stopped;
  }

  async leave(grace) {
    await this.stream?.leave(grace);
    await this.loop?.catch(() => {});
    this.connection.stub.close();
  }
}

/** One stream: one session, whose jobs are ours until it ends. */
class Stream {
  constructor(worker) {
    this.worker = worker;
    this.runs = new Map(); // job id -> { job, stop }
    this.unsettled = new Map(); // job id -> { job, method }, until the server says what became of it
    this.unsent = { acks: [], nacks: [], progress: [] };
    this.started = this.over = this.flushing = false;
    this.ended = new Promise((resolve) => this.open(resolve));
  }

  open(resolve) {
    const { queues, tasks, lease, concurrency, connection } = this.worker;
    this.call = connection.stub.Work(connection.metadata);
    this.call.on('data', (reply) => this.hear(reply));
    this.call.on('error', () => {}); // its status follows
    this.call.on('status', (ending) => this.end(ending, resolve));
    this.beat = setInterval(() => this.flush(true), (lease * 1000) / 3);
    this.call.write({ start: { queues, tasks: Object.keys(tasks), lease, credits: concurrency } });
  }

  end(ending, resolve) {
    this.over = true;
    clearInterval(this.beat);
    for (const { stop } of this.runs.values()) stop.abort('lost');
    this.idle?.();
    resolve(Object.assign(new Error(`${ending.code}: ${ending.details}`), { code: ending.code }));
  }

  hear({ started, jobs, settled, stops }) {
    if (started) this.started = true;
    for (const one of settled) this.settle(one);
    for (const job of jobs) this.perform(job); // before stops: a job may come together with the order to stop it
    for (const { id, run, lost } of stops) {
      const held = this.runs.get(id);
      if (held?.job.run === run) held.stop.abort(lost ? 'lost' : 'cancelled');
    }
  }

  settle({ id, run, status: state, refused }) {
    const { job, method } = this.unsettled.get(id) ?? {};
    if (job?.run !== run) return;
    this.unsettled.delete(id);
    if (!refused) this.worker.onSettled(job, method, state);
    else if (refused.code !== 'lease_lost') this.say('nacks', job, unfit(refused));
    if (this.idle && !this.runs.size && !this.unsettled.size) this.idle();
  }

  async perform(job) {
    const stop = new AbortController();
    this.runs.set(job.id, { job, stop });
    let verdict;
    try {
      const result = await this.work(job, stop.signal);
      verdict = ['acks', { result_json: JSON.stringify(result ?? null) }];
    } catch (error) {
      verdict = ['nacks', failure(error, stop.signal)];
    }
    this.runs.delete(job.id);
    if (stop.signal.reason !== 'lost') this.say(verdict[0], job, verdict[1]);
  }

  async work(job, signal) {
    if (!job.args_json) throw new Reject(`its arguments are ${job.codec}, not JSON`);
    const progress = (done, total, note = '') => this.say('progress', job, { progress: { done, total, note } });
    const stopped = new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new Error(signal.reason)), { once: true });
    });
    const work = this.worker.tasks[job.task](JSON.parse(job.args_json), JSON.parse(job.kwargs_json), { job, signal, progress });
    return Promise.race([work, stopped]);
  }

  /** What is said in one turn of the event loop is sent in one message. */
  say(what, job, fields) {
    this.unsent[what].push({ id: job.id, run: job.run, ...fields });
    if (what !== 'progress') this.unsettled.set(job.id, { job, method: what === 'acks' ? 'Ack' : 'Nack' });
    if (this.flushing) return;
    this.flushing = true;
    setImmediate(() => this.flush());
  }

  /** An empty message is a sign of life. */
  flush(always = false) {
    this.flushing = false;
    while (!this.over) {
      const message = {};
      let room = ITEMS_MAX;
      for (const what of ['progress', 'acks', 'nacks']) {
        message[what] = this.unsent[what].splice(0, room);
        room -= message[what].length;
      }
      if (room === ITEMS_MAX && !always) return;
      this.call.write(message);
      if (room > 0) return;
    }
  }

  /** Finish what runs within `grace` seconds, give back the rest, and say goodbye. */
  async leave(grace) {
    if (this.over) return;
    this.call.write({ credits: 0 });
    const idle = new Promise((resolve) => (this.idle = resolve));
    if (!this.runs.size && !this.unsettled.size) this.idle();
    await Promise.race([idle, sleep(grace, { unref: true })]);
    for (const { stop } of this.runs.values()) stop.abort('leaving');
    await new Promise(setImmediate); // their nacks are said by then
    this.flush();
    this.call.write({ leave: true });
    this.call.end();
  }
}

function failure(error, signal) {
  if (signal.aborted) return { kind: 'NACK_KIND_GIVE_BACK' }; // of a cancelled job, the server makes "cancelled"
  const kind = error instanceof Reject ? 'NACK_KIND_DEAD' : 'NACK_KIND_RETRY';
  const type = error?.constructor?.name ?? 'Error';
  return { kind, error: { type, message: String(error?.message ?? error), traceback: error?.stack ?? '' } };
}

/** A result that the server cannot store, such as one that is too large. */
function unfit({ code, message }) {
  return { kind: 'NACK_KIND_DEAD', error: { type: code, message } };
}

function sleep(seconds, { unref = false } = {}) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    if (unref) timer.unref();
  });
}
