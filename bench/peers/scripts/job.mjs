// What the scripts of the Node peers share: the same as job.py.
import { appendFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

const { BENCH_URL, BENCH_REDIS, BENCH_FOLDER } = process.env
export { BENCH_URL as url, BENCH_REDIS as redis }
export const CALL = 10_000

// Seconds since 1970; Date.now() knows whole milliseconds only.
const now = () => (performance.timeOrigin + performance.now()) / 1000

let noted = false
export function first() {
  if (noted) return
  noted = true
  writeFileSync(join(BENCH_FOLDER, `first.${process.pid}`), String(now()))
}

export function begin(n) {
  const began = now()
  appendFileSync(join(BENCH_FOLDER, 'begun'), `${n} ${began}\n`)
}

export function* calls(jobs, size = CALL) {
  for (let start = 0; start < jobs; start += size) {
    yield Array.from({ length: Math.min(size, jobs - start) }, (_, n) => start + n)
  }
}

export async function timed(work) {
  const started = performance.now()
  await work()
  console.log(JSON.stringify({ seconds: (performance.now() - started) / 1000 }))
}

export async function trickle(start, count, perSecond, enqueue) {
  await enqueue(start - 1)
  const began = performance.now() + 1000 / perSecond
  let returned = ''
  for (let n = start; n < start + count; n++) {
    const wait = began + ((n - start) * 1000) / perSecond - performance.now()
    if (wait > 0) await sleep(wait)
    const called = now()
    await enqueue(n)
    returned += `${n} ${called} ${now()}\n`
  }
  writeFileSync(join(BENCH_FOLDER, `returned.${start}`), returned)
}

export async function main(verbs) {
  const [verb, ...numbers] = process.argv.slice(2)
  await verbs[verb](...numbers.map(Number))
}
