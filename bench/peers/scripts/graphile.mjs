// Graphile Worker: a local queue of 500, 24 jobs at once, completions batched without a delay.
import { makeWorkerUtils, run } from 'graphile-worker'
import * as job from './job.mjs'

const worker = {
  connectionString: job.url,
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0
}

async function withUtils(work) {
  const utils = await makeWorkerUtils({ connectionString: job.url })
  await work(utils)
  await utils.release()
}

await job.main({
  prepare: () => withUtils((utils) => utils.migrate()),
  enqueue: (jobs) =>
    withUtils((utils) =>
      job.timed(async () => {
        for (const numbers of job.calls(jobs)) {
          await utils.addJobs(numbers.map((n) => ({ identifier: 'noop', payload: { n } })))
        }
      })
    ),
  trickle: (start, count, perSecond) =>
    withUtils((utils) =>
      job.trickle(start, count, perSecond, (n) => utils.addJob('probe', { n }))
    ),
  work: () =>
    run({
      preset: { worker },
      taskList: { noop: async () => job.first(), probe: async ({ n }) => job.begin(n) }
    })
})
