// BullMQ on Redis: the processor takes the signal, so that BullMQ can cancel it.
import { Queue, Worker } from 'bullmq'
import * as handler from './handler.mjs'

const connection = { url: handler.redis, maxRetriesPerRequest: null }

async function prepare() {
  const queue = new Queue('charge', { connection })
  await queue.add('charge', {})
  await queue.close()
}

async function work() {
  const process = async (job, token, signal) => handler.handle(job.id, signal)
  const worker = new Worker('charge', process, {
    connection,
    lockDuration: 1000,
    stalledInterval: 1000
  })
  worker.on('error', (error) => console.error('error event:', error.message))
  worker.on('failed', (job, error) => console.error('failed event:', error.message))
  worker.on('lockRenewalFailed', (ids) => {
    console.error('lockRenewalFailed event:', ids)
    for (const id of ids) worker.cancelJob(id, 'lock lost')
  })
  await worker.waitUntilReady()
  await handler.note('ready')
}

await { prepare, work }[process.argv[2]]()
