// pg-boss: batches of 500, fetched without a pause while they are full; LISTEN and NOTIFY on.
import { PgBoss } from 'pg-boss'
import * as job from './job.mjs'

const boss = new PgBoss({ connectionString: job.url, useListenNotify: true })
boss.on('error', (error) => console.error('error event:', error))

async function withBoss(work) {
  await boss.start()
  await work()
  await boss.stop()
}

await job.main({
  prepare: () =>
    withBoss(async () => {
      for (const name of ['noop', 'probe']) await boss.createQueue(name, { notify: true })
    }),
  enqueue: (jobs) =>
    withBoss(() =>
      job.timed(async () => {
        for (const numbers of job.calls(jobs)) {
          await boss.insert('noop', numbers.map((n) => ({ data: { n } })))
        }
      })
    ),
  trickle: (start, count, perSecond) =>
    withBoss(() => job.trickle(start, count, perSecond, (n) => boss.send('probe', { n }))),
  work: async () => {
    await boss.start()
    const options = { batchSize: 500, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
    await boss.work('noop', options, async (jobs) => {
      for (const _ of jobs) job.first()
    })
    await boss.work('probe', options, async (jobs) => {
      for (const { data } of jobs) job.begin(data.n)
    })
  }
})
