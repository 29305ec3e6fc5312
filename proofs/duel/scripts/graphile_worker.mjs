// Graphile Worker: its lock lasts four hours; the sweep that ends old locks is set to each second.
import { makeWorkerUtils, run } from 'graphile-worker'
import * as handler from './handler.mjs'

async function prepare() {
  const utils = await makeWorkerUtils({ connectionString: handler.url })
  await utils.migrate()
  await utils.addJob('charge', {})
  await utils.release()
}

async function work() {
  await run({
    connectionString: handler.url,
    concurrency: 1,
    pollInterval: 500,
    minResetLockedInterval: 1000,
    maxResetLockedInterval: 1000,
    taskList: { charge: (payload, helpers) => handler.handle(helpers.job.id, helpers.abortSignal) }
  })
  await handler.note('ready')
}

await { prepare, work }[process.argv[2]]()
