// What nostr-tools does against a relay, as one JSON line: node nostr_tools.mjs STORY URL [SECRET_HEX]
import { Relay, useWebSocketImplementation } from 'nostr-tools/relay'
import { SimplePool, useWebSocketImplementation as usePoolSocket } from 'nostr-tools/pool'
import { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } from 'nostr-tools/pure'
import { fetchRelayInformation } from 'nostr-tools/nip11'
import WebSocket from 'ws'

useWebSocketImplementation(WebSocket)
usePoolSocket(WebSocket)

const [story, url, secret] = process.argv.slice(2)
const key = secret ? Uint8Array.from(Buffer.from(secret, 'hex')) : generateSecretKey()
const pubkey = getPublicKey(key)
const START = 1700000000

const sign = (content, more = {}, by = key) =>
  finalizeEvent({ kind: 1, created_at: Math.floor(Date.now() / 1000), tags: [], content, ...more }, by)

const snapshot = (d, counter, more = {}) =>
  sign('sealed', { kind: 42061, tags: [['d', d], ['o', 'put'], ['vc', 'laptop', String(counter)]], ...more })

// Everything stored that matches, in the order of arrival, with why it ended.
const query = (relay, ...filters) =>
  new Promise(resolve => {
    const events = []
    const sub = relay.subscribe(filters, {
      onevent: event => events.push(event),
      oninvalidevent: event => events.push({ invalid: event }),
      oneose() {
        resolve({ contents: events.map(event => event.content), valid: events.every(verifyEvent) })
        sub.close()
      },
      onclose: reason => resolve({ closed: reason }),
    })
  })

const refusal = promise => promise.then(() => null, error => String(error.message ?? error))

const stories = {
  async publish_and_query(relay) {
    const texts = []
    for (let n = 0; n < 6; n++) {
      await relay.publish(sign(`note ${n} é😀`, { created_at: START + n, tags: [['t', 'ab'[n % 2]]] }))
      texts.push(`note ${n} é😀`)
    }
    const again = sign('again')
    const first = await relay.publish(again)
    const second = await relay.publish(again)
    const mine = { authors: [pubkey], kinds: [1], until: START + 10 }
    return {
      all: await query(relay, mine),
      limited: await query(relay, { ...mine, limit: 2 }),
      tagged: await query(relay, { ...mine, '#t': ['a'] }),
      either: await query(relay, { ...mine, until: START }, { ...mine, since: START + 5 }),
      again: [first, second],
      forged: await refusal(relay.publish({ ...sign('true'), content: 'forged' })),
      count: await relay.count([{ authors: [pubkey] }], {}),
    }
  },

  async subscribe_live(relay) {
    const writer = await Relay.connect(url)
    const heard = []
    let before = 0
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('too slow')), 8000).unref()
      relay.subscribe([{ authors: [pubkey], kinds: [1] }], {
        onevent(event) {
          heard.push(event.content)
          if (heard.length === 5) resolve()
        },
        async oneose() {
          before = heard.length
          await writer.publish(sign('another kind', { kind: 7 }))
          for (let n = 0; n < 5; n++) await writer.publish(sign(`live ${n}`))
        },
      })
    })
    writer.close()
    return { before, heard }
  },

  async snapshots(relay) {
    const messages = [await relay.publish(snapshot('note', 1)), await relay.publish(snapshot('note', 2))]
    return {
      messages,
      found: await query(relay, { authors: [pubkey], kinds: [42061], '#d': ['note'] }),
      malformed: await refusal(relay.publish(sign('sealed', { kind: 42061, tags: [['d', 'note'], ['o', 'put']] }))),
    }
  },

  async authenticate(relay) {
    const own = snapshot('note', 1)
    const before = { write: await refusal(relay.publish(own)), read: await query(relay, { authors: [pubkey] }) }
    await relay.auth(async template => finalizeEvent(template, key))
    const wrote = await relay.publish(own)
    const other = generateSecretKey()
    return {
      before,
      wrote,
      read: await query(relay, { authors: [pubkey] }),
      foreign: await query(relay, { authors: [getPublicKey(other)] }),
      foreign_write: await refusal(relay.publish(sign('x', { kind: 42061, tags: own.tags }, other))),
    }
  },

  async pool(relay) {
    const pool = new SimplePool()
    await Promise.all(pool.publish([url], sign('by pool', { created_at: START })))
    const found = await pool.querySync([url], { authors: [pubkey] })
    const one = await pool.get([url], { ids: [found[0].id] })
    pool.close([url])
    return { found: found.map(event => event.content), one: one.content }
  },

  async information() {
    const info = await fetchRelayInformation(url)
    return { name: info.name, nips: info.supported_nips, min_seq: info.changes_feed.min_seq }
  },
}

const relay = await Relay.connect(url)
const result = await stories[story](relay)
relay.close()
console.log(JSON.stringify({ pubkey, ...result }))
process.exit(0)
