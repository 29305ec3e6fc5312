// pg-boss: heartbeats on, monitored every second; plain, or with its transactional worker.
import { PgBoss } from 'pg-boss'
import * as handler from './handler.mjs'

const QUEUE = 'charge'
const boss = new PgBoss({
  connectionString: handler.url,
  superviseIntervalSeconds: 1,
  monitorIntervalSeconds: 1
})
boss.on('error', (error) => console.error('error event:', error))
boss.on('warning', (warning) => console.error('warning event:', warning.message))

async function prepare() {
  await boss.start()
  await boss.createQueue(QUEUE, { heartbeatSeconds: 10, retryLimit: 5 })
  await boss.send(QUEUE, {})
  await boss.stop()
}

async function plain([job]) {
  await handler.handle(job.id, job.signal)
}

async function transactional([job], tx) {
  await handler.handleWith(job.signal, async (atTheWrite) => {
    await atTheWrite()
    await tx.executeSql(handler.INSERT, handler.row(job.id)) // for pg-boss to commit
  })
}

async function work() {
  await boss.start()
  const options = { pollingIntervalSeconds: 0.5, heartbeatRefreshSeconds: 1 }
  if (handler.variant === 'transactional') {
    await boss.work(QUEUE, { ...options, transactional: true }, transactional)
  } else {
    await boss.work(QUEUE, options, plain)
  }
  await handler.note('ready')
}

await { prepare, work }[process.argv[2]]()
