// nostr-tools' negentropy, which it does not export, behind standard input and output or over files.
//   node negentropy_peer.mjs NIP77_JS serve                       one JSON request a line, one JSON answer a line
//   node negentropy_peer.mjs NIP77_JS measure LEFT RIGHT MESSAGES CPU seconds over a whole session, as JSON
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [nip77, command, ...files] = process.argv.slice(2)
const { Negentropy, NegentropyStorageVector } = await import(pathToFileURL(nip77))
const NO_LIMIT = Number.MAX_SAFE_INTEGER // it has no «none»

const stored = items => {
  const storage = new NegentropyStorageVector()
  for (const [timestamp, id] of items) storage.insert(timestamp, id)
  storage.seal()
  return storage
}

const sessions = new Map()
const requests = {
  open: ({ name, items, limit }) => {
    sessions.set(name, new Negentropy(stored(items), limit || NO_LIMIT))
    return {}
  },
  initiate: ({ name }) => ({ message: sessions.get(name).initiate() }),
  reconcile: ({ name, message }) => {
    const have = [], need = []
    const answer = sessions.get(name).reconcile(message, id => have.push(id), id => need.push(id))
    return { message: answer, have, need }
  },
}

const serve = async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      answer = requests[request.do](request)
    } catch (error) {
      answer = { error: String(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
}

// Rows of 40 bytes: a timestamp of 64 bits, little-endian, and an id. They become what its own code gets: hex.
const rows = file => {
  const bytes = readFileSync(file)
  const items = []
  for (let at = 0; at < bytes.length; at += 40)
    items.push([Number(bytes.readBigUInt64LE(at)), bytes.toString('hex', at + 8, at + 40)])
  return items
}

const seconds = work => {
  const before = process.cpuUsage()
  const result = work()
  const { user, system } = process.cpuUsage(before)
  return [(user + system) / 1e6, result]
}

// Both sides get the messages of a session that took place. It plays no responder: it compares ids where one would
// answer with its own, which is no less work; `equal` counts the answers that are byte for byte those of the session.
const measure = (leftFile, rightFile, messagesFile) => {
  const [left, right] = [rows(leftFile), rows(rightFile)]
  const messages = JSON.parse(readFileSync(messagesFile))
  const [build, storages] = seconds(() => [stored(left), stored(right)])
  const [initiator, responder] = storages.map(storage => new Negentropy(storage, NO_LIMIT))
  let have = 0, need = 0
  const [rounds, equal] = seconds(() => {
    let equal = initiator.initiate() === messages[0] ? 1 : 0
    messages.forEach((message, turn) => {
      const answer = turn % 2
        ? initiator.reconcile(message, () => have++, () => need++)
        : responder.reconcile(message)
      if (answer === (messages[turn + 1] ?? null)) equal++
    })
    return equal
  })
  console.log(JSON.stringify({ build_cpu_seconds: build, rounds_cpu_seconds: rounds, equal, have, need }))
}

if (command === 'serve') await serve()
else measure(...files)
