//! What will be read next, for members of the team that wait to bring it near.
//!
//! Between two products a pass has little to do, most of it on one thread, and memory would rest. But every pass takes the
//! same weights in the same order: what followed some products last time is likely to follow them again. So who waits asks
//! for the panels that its member will begin the next products with. A wrong guess costs some reading and changes nothing.

use super::{Cpu, Product};
use crate::isa;
use std::collections::HashMap;
use std::ops::Range;

/// Bytes that a member asks for at most, as they have to stay in its second-level cache.
const ROOM: usize = 256 * 1024;
/// Runs of panels that are told of; more than products that are ever taken together.
pub const PIECES: usize = 4;
/// Products to remember, many more than a model has. Beyond that all are forgotten.
const KEPT: usize = 8192;

/// Addresses worth asking for. Nothing is read through them: memory may have gone from there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Soon {
    /// First byte and end.
    pieces: [(usize, usize); PIECES],
    at: usize,
}

impl Soon {
    /// Asks for one cache line, if there is one left.
    #[inline(always)]
    pub fn ask(&mut self) -> bool {
        while let Some((start, end)) = self.pieces.get_mut(self.at) {
            if start < end {
                isa::prefetch_near(*start as *const u8);
                *start += 64;
                return true;
            }
            self.at += 1;
        }
        false
    }
}

/// Products that were made, and what came after them.
#[derive(Default)]
pub struct Order {
    places: HashMap<Key, usize>,
    seen: Vec<Seen>,
    /// `[seen, members]`: what each member begins with.
    soon: Vec<Soon>,
    last: usize,
}

/// Where the panels of the first weight are, and how many there are in all.
type Key = (usize, usize);

struct Seen {
    key: Key,
    /// Where the weights' descriptions are: small things, and far away after a pass over all the weights.
    weights: [usize; PIECES],
    next: usize,
}

impl Order {
    /// Notes that `products` of `panels` panels in all are made now by `members`; gives, by member, the beginning of what was
    /// made after them last time.
    pub fn note(&mut self, products: &[Product<'_, Cpu>], panels: usize, members: usize) -> &[Soon] {
        let key = (products.first().map_or(0, |p| p.weight.panels(0..0).as_ptr() as usize), panels);
        let guess = self.seen.get(self.last).map_or(0, |seen| seen.next);
        let this = match self.seen.get(guess) {
            Some(seen) if seen.key == key => guess,
            _ => self.place(key, products, panels, members),
        };
        if let Some(last) = self.seen.get_mut(self.last) {
            last.next = this;
        }
        self.last = this;
        let Seen { next, .. } = self.seen[this];
        let Seen { weights, next: after, .. } = &self.seen[next];
        weights.iter().for_each(|&at| isa::prefetch_near(at as *const u8));
        // What the next call will look at.
        isa::prefetch_near((&raw const self.seen[*after]).cast());
        let of = |place: usize| place * members..(place + 1) * members;
        self.soon[of(*after)].iter().for_each(|soon| isa::prefetch_near((&raw const *soon).cast()));
        &self.soon[of(next)]
    }

    fn place(&mut self, key: Key, products: &[Product<'_, Cpu>], panels: usize, members: usize) -> usize {
        if let Some(&place) = self.places.get(&key) {
            return place;
        }
        if self.seen.len() == KEPT {
            *self = Self::default();
        }
        let place = self.seen.len();
        let mut weights = [0; PIECES];
        for (at, p) in weights.iter_mut().zip(products) {
            *at = (&raw const *p.weight) as usize;
        }
        self.seen.push(Seen { key, weights, next: place });
        let share = |member: usize| share(products, panels * member / members..panels * (member + 1) / members);
        self.soon.extend((0..members).map(share));
        self.places.insert(key, place);
        place
    }
}

/// The first panels among `units` of all the panels of `products` in a row.
fn share(products: &[Product<'_, Cpu>], units: Range<usize>) -> Soon {
    let mut soon = Soon::default();
    let (mut first, mut room) = (0, ROOM);
    for (Product { weight, .. }, piece) in products.iter().zip(&mut soon.pieces) {
        let end = first + weight.panel_count();
        let mine = units.start.clamp(first, end) - first..units.end.clamp(first, end) - first;
        let panels = weight.panels(mine);
        let start = panels.as_ptr() as usize;
        *piece = (start, start + panels.len().min(room));
        room -= panels.len().min(room);
        first = end;
    }
    soon
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_once_and_piece_by_piece() {
        let bytes = [0u8; 1024];
        let at = bytes.as_ptr() as usize;
        let mut soon = Soon { pieces: [(at, at + 64), (at, at), (at + 128, at + 300), (0, 0)], at: 0 };
        assert_eq!((0..10).map(|_| soon.ask()).filter(|&asked| asked).count(), 1 + 3);
    }
}
