// What every Node peer's handler does: the same as handler.py, without blocking the event loop.
import { existsSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const { DUEL_URL, DUEL_REDIS, DUEL_RUN, DUEL_WORKER, DUEL_VARIANT, DUEL_POINT, DUEL_FOLDER } = process.env
export { DUEL_URL as url, DUEL_REDIS as redis, DUEL_VARIANT as variant, DUEL_WORKER as worker }

export const INSERT = 'insert into effect (run, job, worker, pid) values ($1, $2, $3, $4)'
export const row = (job) => [Number(DUEL_RUN), String(job), DUEL_WORKER, process.pid]

export async function note(what) {
  const client = new pg.Client({ connectionString: DUEL_URL })
  await client.connect()
  const values = [DUEL_WORKER, process.pid, what]
  await client.query('insert into event (worker, pid, what) values ($1, $2, $3)', values)
  await client.end()
}

// A makes a file and polls for another; whoever else comes just passes.
async function stops(point, signal) {
  if (DUEL_WORKER !== 'A' || point !== DUEL_POINT) return false
  writeFileSync(join(DUEL_FOLDER, 'inside.part'), String(process.pid))
  renameSync(join(DUEL_FOLDER, 'inside.part'), join(DUEL_FOLDER, 'inside'))
  while (!existsSync(join(DUEL_FOLDER, 'release'))) await sleep(20, undefined, { signal })
  return true
}

// The handler begins; in half of the duels it is stopped here, with half a second of work to do.
// It heeds its signal, if its peer gives it one, wherever it waits and when the work is done.
async function begin(signal) {
  await note('began')
  if (await stops('early', signal)) await sleep(500, undefined, { signal })
  signal?.throwIfAborted()
}

// `write` gets a function to call as its last step before the INSERT: the other point.
export async function handleWith(signal, write) {
  const signalled = () => console.error(`handler signalled: abort: ${signal.reason}`)
  signal?.addEventListener('abort', signalled)
  try {
    await begin(signal)
    await write(() => stops('write'))
    await note('wrote')
  } catch (error) {
    await note(`stopped: ${error.cause?.message ?? error.message}`)
    throw error
  } finally {
    signal?.removeEventListener('abort', signalled)
  }
}

// On a connection of the handler's own.
export const handle = (job, signal) =>
  handleWith(signal, async (atTheWrite) => {
    const client = new pg.Client({ connectionString: DUEL_URL })
    await client.connect()
    try {
      await atTheWrite()
      await client.query(INSERT, row(job))
    } finally {
      await client.end()
    }
  })
