// BullMQ on Node, with ioredis. `node bullmq.cjs work` is a worker, `node bullmq.cjs drive` obeys the bench as
// inside.py does.
//
// Two worker processes, 100 jobs at a time each; jobs are removed when they are complete (removeOnComplete), no metrics.
// `bulk` is addBulk; the round trip waits with QueueEvents. Plain functions and async ones are the same here,
// and there is no blocking enqueue.
"use strict";
const fs = require("fs");
const path = require("path");
const readline = require("readline");
const { Queue, QueueEvents, Worker } = require("bullmq");

const SHIFT = 24, PLACES = (1 << SHIFT) - 1, HEAD = 16, ROOM = 1 << 21, PROBES = 1 << 16;
const AT_ONCE = 100, BATCH = 1000, IO_MS = 10;
const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

// Marks are written at most once per turn of the event loop: Node cannot map a file into memory.
class Book {
  constructor(name, size) {
    this.file = fs.openSync(path.join(process.env.BENCH_MARKS, `${name}-${process.pid}`), "a+");
    fs.closeSync(this.file);
    this.file = fs.openSync(path.join(process.env.BENCH_MARKS, `${name}-${process.pid}`), "r+");
    fs.ftruncateSync(this.file, size);
    this.bytes = Buffer.alloc(size);
    this.low = size;
    this.high = 0;
    this.due = false;
  }

  touch(from, to) {
    this.low = Math.min(this.low, from);
    this.high = Math.max(this.high, to);
    if (this.due) return;
    this.due = true;
    setImmediate(() => {
      fs.writeSync(this.file, this.bytes, this.low, this.high - this.low, this.low);
      fs.writeSync(this.file, this.bytes, 0, HEAD, 0);
      this.low = this.bytes.length;
      this.high = 0;
      this.due = false;
    });
  }
}

const books = new Map(), delays = new Map();
const now = () => process.hrtime.bigint();

function begin(n) {
  const phase = n >> SHIFT;
  let book = books.get(phase);
  if (!book) {
    book = new Book(`marks-${phase}`, HEAD + ROOM);
    book.bytes.writeBigInt64LE(now(), 0);
    books.set(phase, book);
  }
  return book;
}

function mark(n) {
  const book = begin(n), at = HEAD + (n & PLACES);
  book.bytes[at] += 1;
  book.bytes.writeBigInt64LE(now(), 8);
  book.touch(at, at + 1);
}

function note(n, payload) {
  const at = now(), phase = n >> SHIFT, place = (n & PLACES) * 8;
  let book = delays.get(phase);
  if (!book) {
    book = new Book(`delays-${phase}`, PROBES * 8);
    delays.set(phase, book);
  }
  book.bytes.writeBigInt64LE(at - BigInt(payload.slice(0, 20)), place);
  book.touch(place, place + 8);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const tasks = {
  noop: async ({ n }) => mark(n),
  io: async ({ n }) => {
    begin(n);
    await sleep(IO_MS);
    mark(n);
  },
  probe: async ({ n, payload }) => note(n, payload),
  trip: async ({ n }) => n,
};

function work() {
  new Worker("bench", (job) => tasks[job.name](job.data), { connection, concurrency: 100 });
}

const options = { removeOnComplete: true };
const ways = {
  async awaited(queue, task, first, count, payload) {
    for (let n = first; n < first + count; n++) await queue.add(task, { n, payload }, options);
  },
  async concurrent(queue, task, first, count, payload) {
    let next = first;
    const caller = async () => {
      while (next < first + count) await queue.add(task, { n: next++, payload }, options);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, caller));
  },
  async abulk(queue, task, first, count, payload) {
    for (let start = first; start < first + count; start += BATCH) {
      const jobs = [];
      for (let n = start; n < Math.min(start + BATCH, first + count); n++) {
        jobs.push({ name: task, data: { n, payload }, opts: options });
      }
      await queue.addBulk(jobs);
    }
  },
};

async function enqueue(queue, how, task, first, count, size) {
  const started = now(), cpu = process.cpuUsage();
  await ways[how === "fill" ? "abulk" : how](queue, task, first, count, "x".repeat(size));
  const used = process.cpuUsage(cpu);
  return { seconds: Number(now() - started) / 1e9, cpu: (used.user + used.system) / 1e6, count };
}

const pause = (gap, number) => sleep(gap * 1000 * (0.5 + ((number * 0.618034) % 1)));
const stamp = (at) => at.toString().padStart(20, "0") + "x".repeat(70);

const commands = {
  enqueue: (queue, c) => enqueue(queue, c.how, c.task, c.first, c.count, c.size),
  async probe(queue, { first, count, gap }) {
    for (let i = 0; i < count; i++) {
      await pause(gap, i);
      await queue.add("probe", { n: first + i, payload: stamp(now()) }, options);
    }
    return { count };
  },
  async trip(queue, { first, count, gap }) {
    const events = new QueueEvents("bench", { connection });
    await events.waitUntilReady();
    const seconds = [];
    for (let i = 0; i < count; i++) {
      await pause(gap, i);
      const sent = now();
      const job = await queue.add("trip", { n: first + i, payload: stamp(sent) }, { removeOnComplete: 1000 });
      const result = await job.waitUntilFinished(events, 30000);
      seconds.push(Number(now() - sent) / 1e9);
      if (result !== first + i) throw new Error(`the result of ${first + i} is ${result}`);
    }
    await events.close();
    return { seconds };
  },
  async load(queue, { task, first, rate, seconds }) {
    const started = now();
    let sent = 0, passed = 0;
    while ((passed = Number(now() - started) / 1e9) < seconds) {
      const due = Math.floor(rate * passed) - sent;
      if (due > 0) {
        await ways.abulk(queue, task, first + sent, due, "x".repeat(90));
        sent += due;
      }
      await sleep(10);
    }
    return { count: sent, seconds: passed };
  },
};

async function drive() {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");
  say({ modes: Object.keys(ways), trips: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    say(await commands[command.do](queue, command));
  }
  process.exit(0);
}

if (process.argv[2] === "work") work();
else drive();
