// BullMQ on Redis: 100 jobs at once, the rest by its defaults.
import { Queue, Worker } from 'bullmq'
import * as job from './job.mjs'

const connection = { url: job.redis, maxRetriesPerRequest: null }

async function withQueue(work) {
  const queue = new Queue('bench', { connection })
  await queue.waitUntilReady()
  await work(queue)
  await queue.close()
}

await job.main({
  prepare: () => withQueue(async () => {}),
  enqueue: (jobs) =>
    withQueue((queue) =>
      job.timed(async () => {
        for (const numbers of job.calls(jobs)) {
          await queue.addBulk(numbers.map((n) => ({ name: 'noop', data: { n } })))
        }
      })
    ),
  trickle: (start, count, perSecond) =>
    withQueue((queue) =>
      job.trickle(start, count, perSecond, (n) => queue.add('probe', { n }))
    ),
  work: async () => {
    const handlers = { noop: () => job.first(), probe: ({ n }) => job.begin(n) }
    const worker = new Worker('bench', async ({ name, data }) => handlers[name](data), {
      connection,
      concurrency: 100
    })
    worker.on('error', (error) => console.error('error event:', error.message))
    process.on('SIGTERM', () => worker.close().then(() => process.exit(0)))
  }
})
