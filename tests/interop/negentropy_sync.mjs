// nostr-tools' NegentropySync against a relay: node negentropy_sync.mjs NIP77_JS URL, and on stdin
// {filter, items: [[created_at, id], …]}. The last line is {have, need}: what the relay lacks, and what we lack.
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { Relay, useWebSocketImplementation } from 'nostr-tools/relay'
import WebSocket from 'ws'

const [nip77, url] = process.argv.slice(2)
const { NegentropyStorageVector, NegentropySync } = await import(pathToFileURL(nip77))
useWebSocketImplementation(WebSocket)

const { filter, items } = JSON.parse(readFileSync(0, 'utf8'))
const storage = new NegentropyStorageVector()
for (const [created_at, id] of items) storage.insert(created_at, id)
storage.seal()

const relay = await Relay.connect(url)
const have = [], need = []
await new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error('too slow')), 15000).unref()
  const sync = new NegentropySync(relay, storage, filter, {
    onhave: id => have.push(id),
    onneed: id => need.push(id),
    onclose: reason => (reason ? reject(new Error(reason)) : resolve()),
  })
  sync.start()
})
relay.close()
process.stdout.write(JSON.stringify({ have, need }) + '\n', () => process.exit(0)) // a pipe takes it bit by bit
