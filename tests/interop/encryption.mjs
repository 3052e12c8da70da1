// What nostr-tools encrypts and reads: a JSON request on stdin, a JSON answer as the last line.
// {secret, peer, texts, payloads, rumor, gift} → {payloads, texts, gift, rumor}; `peer` is the other's public key.
import { readFileSync } from 'node:fs'
import * as nip44 from 'nostr-tools/nip44'
import * as nip59 from 'nostr-tools/nip59'

const told = JSON.parse(readFileSync(0, 'utf8'))
const secret = Uint8Array.from(Buffer.from(told.secret, 'hex'))
const key = nip44.getConversationKey(secret, told.peer)

console.log(
  JSON.stringify({
    payloads: told.texts.map(text => nip44.encrypt(text, key)),
    texts: told.payloads.map(payload => nip44.decrypt(payload, key)),
    gift: nip59.wrapEvent(told.rumor, secret, told.peer),
    rumor: nip59.unwrapEvent(told.gift, secret),
  }),
)
