// A parent with children (chord) and parents in parents (chain) with BullMQ: `node subject_bullmq.cjs chord 1000`,
// and `node subject_bullmq.cjs work`.
"use strict";
const { FlowProducer, QueueEvents, Worker } = require("bullmq");

const url = new URL(process.env.BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

async function main(what, size) {
  const producer = new FlowProducer({ connection }), events = new QueueEvents("bench", { connection });
  await events.waitUntilReady();
  const job = (children) => ({ name: "noop", queueName: "bench", data: {}, children });
  await (await producer.add(job([job()]))).job.waitUntilFinished(events);
  let flow = job();
  const began = process.hrtime.bigint();
  if (what === "chord") flow = job(Array.from({ length: size }, () => job()));
  else for (let n = 1; n < size; n++) flow = job([flow]);
  await (await producer.add(flow)).job.waitUntilFinished(events);
  console.log(Number(process.hrtime.bigint() - began) / 1e9);
  process.exit(0);
}

if (process.argv[2] === "work") new Worker("bench", async () => 1, { connection, concurrency: 100 });
else main(process.argv[2], Number(process.argv[3]));
