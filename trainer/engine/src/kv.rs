//! Which cache blocks hold what: allocation, sharing, the tree of known prefixes, eviction.
//!
//! Knows block numbers and tokens, not memory. What a block holds depends on the weights that computed it: the tree has a
//! root for each state of weights, and none is found from another's. A sequence holds a list of blocks, one reference each; the tree holds
//! one reference for each block it knows. A block of [`BLOCK`] tokens that is full is shared as it is; one that is
//! partly filled is copied by whoever continues it, except by the sequence that filled it.
//!
//! Invariants: a block with references is never handed out again; only blocks that nobody but the tree holds, and that
//! have no children there, are evicted, the longest unused first; time is a counter, so that a run repeats.

use std::collections::BTreeMap;

use crate::shim::BLOCK;

/// The parent of nodes that begin a prefix.
const ROOT: usize = usize::MAX;

struct Node {
    root: u64,
    parent: usize,
    block: i64,
    /// At most [`BLOCK`] tokens; only full nodes have children.
    tokens: Vec<u32>,
    children: Vec<usize>,
    used: u64,
}

/// What is known of a prompt.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Full blocks, one reference each taken for the caller.
    pub blocks: Vec<i64>,
    /// A block whose first tokens continue the prefix, and how many: to be copied. Holds a reference for the caller,
    /// to be released after the copy.
    pub tail: Option<(i64, usize)>,
}

impl Prefix {
    /// Tokens covered.
    pub fn tokens(&self) -> usize {
        self.blocks.len() * BLOCK + self.tail.map_or(0, |(_, n)| n)
    }
}

/// Block accounting and the prefix tree.
pub struct PrefixCache {
    limit: usize,
    references: Vec<u32>,
    free: Vec<i64>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
    /// The first nodes of each root.
    top: BTreeMap<u64, Vec<usize>>,
    clock: u64,
    evictions: u64,
}

impl PrefixCache {
    /// A cache of at most `limit` blocks.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            references: Vec::new(),
            free: Vec::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            top: BTreeMap::new(),
            clock: 0,
            evictions: 0,
        }
    }

    /// Most blocks.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Blocks dropped from the tree so far to make room.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Blocks that hold something, for a sequence or in the tree.
    pub fn in_use(&self) -> usize {
        self.references.len() - self.free.len()
    }

    /// Blocks that could be had: never used, free, or held by the tree alone.
    pub fn available(&self) -> usize {
        let idle = self.nodes.iter().flatten().filter(|n| self.references[n.block as usize] == 1).count();
        self.limit - self.references.len() + self.free.len() + idle
    }

    /// A block of one's own, with one reference. Evicts if it must; `None` when every block is held by a sequence.
    pub fn allocate(&mut self) -> Option<i64> {
        if self.free.is_empty() && self.references.len() < self.limit {
            self.references.push(0);
            self.free.push(self.references.len() as i64 - 1);
        }
        if self.free.is_empty() {
            self.evict();
        }
        let block = self.free.pop()?;
        self.references[block as usize] = 1;
        Some(block)
    }

    /// Takes one more reference.
    pub fn share(&mut self, block: i64) {
        self.references[block as usize] += 1;
    }

    /// Gives a reference back.
    pub fn release(&mut self, block: i64) {
        let count = &mut self.references[block as usize];
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.free.push(block);
        }
    }

    /// The longest known prefix of `tokens` under a state of weights.
    pub fn lookup(&mut self, root: u64, tokens: &[u32]) -> Prefix {
        let mut found = Prefix::default();
        let (mut at, mut rest) = (ROOT, tokens);
        self.clock += 1;
        loop {
            let children = self.children(root, at).iter();
            let best = children.map(|&c| (self.common(c, rest), c)).max_by_key(|(n, c)| (*n, usize::MAX - c));
            let Some((n, child)) = best.filter(|(n, _)| *n > 0) else { return found };
            let clock = self.clock;
            let Some(node) = self.nodes[child].as_mut() else { return found };
            node.used = clock;
            let block = node.block;
            self.share(block);
            if n < BLOCK {
                found.tail = Some((block, n));
                return found;
            }
            found.blocks.push(block);
            at = child;
            rest = &rest[BLOCK..];
        }
    }

    /// Remembers that `blocks` hold `tokens` under a state of weights. The caller keeps its references; the tree takes its own. A full block that
    /// the tree has already is given back, and the known one put in its place: so a block that a sequence holds never
    /// hangs below one that it does not hold.
    pub fn insert(&mut self, root: u64, tokens: &[u32], blocks: &mut [i64]) {
        self.clock += 1;
        let mut at = ROOT;
        for (chunk, own) in tokens.chunks(BLOCK).zip(blocks) {
            let block = *own;
            // A child that says the same, as far as the shorter of the two goes.
            let same = |c: &&usize| self.common(**c, chunk) == self.length(**c).min(chunk.len());
            let child = self.children(root, at).iter().filter(same).max_by_key(|c| self.length(**c)).copied();
            let child = if let Some(child) = child {
                if self.length(child) < chunk.len() {
                    self.share(block);
                    if let Some(node) = self.nodes[child].as_mut() {
                        let old = std::mem::replace(&mut node.block, block);
                        node.tokens = chunk.to_vec();
                        self.release(old);
                    }
                } else if chunk.len() == BLOCK
                    && let Some(known) = self.nodes[child].as_ref().map(|n| n.block)
                    && known != block
                {
                    self.share(known);
                    self.release(block);
                    *own = known;
                }
                child
            } else {
                self.share(block);
                self.add(Node { root, parent: at, block, tokens: chunk.to_vec(), children: Vec::new(), used: 0 })
            };
            if let Some(node) = self.nodes[child].as_mut() {
                node.used = self.clock;
            }
            at = child;
        }
    }

    /// Drops all that is known under a state of weights that is over. Sequences keep the blocks that they hold.
    pub fn forget(&mut self, root: u64) {
        let mut rest = self.top.remove(&root).unwrap_or_default();
        while let Some(index) = rest.pop() {
            let Some(node) = self.nodes[index].take() else { continue };
            self.vacant.push(index);
            self.release(node.block);
            rest.extend(node.children);
        }
    }

    fn add(&mut self, node: Node) -> usize {
        let (root, parent) = (node.root, node.parent);
        let index = if let Some(index) = self.vacant.pop() {
            self.nodes[index] = Some(node);
            index
        } else {
            self.nodes.push(Some(node));
            self.nodes.len() - 1
        };
        if parent == ROOT {
            self.top.entry(root).or_default().push(index);
        } else if let Some(parent) = self.nodes[parent].as_mut() {
            parent.children.push(index);
        }
        index
    }

    fn evict(&mut self) {
        let idle = |node: &Node| node.children.is_empty() && self.references[node.block as usize] == 1;
        let nodes = self.nodes.iter().enumerate().filter_map(|(i, n)| n.as_ref().map(|n| (i, n)));
        let Some(oldest) = nodes.filter(|(_, n)| idle(n)).min_by_key(|(i, n)| (n.used, *i)).map(|(i, _)| i) else {
            return;
        };
        let Some(node) = self.nodes[oldest].take() else { return };
        self.vacant.push(oldest);
        let siblings = match node.parent {
            ROOT => self.top.get_mut(&node.root),
            parent => self.nodes[parent].as_mut().map(|p| &mut p.children),
        };
        if let Some(siblings) = siblings {
            siblings.retain(|c| *c != oldest);
        }
        if self.top.get(&node.root).is_some_and(Vec::is_empty) {
            self.top.remove(&node.root);
        }
        self.evictions += 1;
        self.release(node.block);
    }

    fn children(&self, root: u64, at: usize) -> &[usize] {
        let children = if at == ROOT { self.top.get(&root) } else { self.nodes[at].as_ref().map(|n| &n.children) };
        children.map_or(&[], Vec::as_slice)
    }

    fn length(&self, node: usize) -> usize {
        self.nodes[node].as_ref().map_or(0, |n| n.tokens.len())
    }

    /// How many tokens a node and the beginning of `rest` have in common.
    fn common(&self, node: usize, rest: &[u32]) -> usize {
        self.nodes[node].as_ref().map_or(0, |n| n.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(cache: &mut PrefixCache, tokens: &[u32]) {
        let mut blocks: Vec<i64> = tokens.chunks(BLOCK).map(|_| cache.allocate().unwrap()).collect();
        cache.insert(0, tokens, &mut blocks);
        for block in blocks {
            cache.release(block);
        }
    }

    #[test]
    fn a_growing_conversation_is_found_to_the_last_token() {
        let mut cache = PrefixCache::new(8);
        let turns: Vec<u32> = (0..100).collect();
        put(&mut cache, &turns[..40]);
        let found = cache.lookup(0, &turns);
        assert_eq!((found.blocks.len(), found.tail.map(|t| t.1), found.tokens()), (1, Some(8), 40));
        cache.release(found.tail.unwrap().0);
        found.blocks.iter().for_each(|b| cache.release(*b));
        put(&mut cache, &turns[..70]);
        assert_eq!(cache.lookup(0, &turns).tokens(), 70);
        assert_eq!(cache.in_use(), 3, "the longer tail takes the place of the shorter");
    }

    #[test]
    fn the_longest_unused_prefix_goes_first() {
        let mut cache = PrefixCache::new(2);
        put(&mut cache, &[1; BLOCK]);
        put(&mut cache, &[2; BLOCK]);
        let touched = cache.lookup(0, &[1; BLOCK]);
        touched.blocks.iter().for_each(|b| cache.release(*b));
        put(&mut cache, &[3; BLOCK]);
        assert_eq!(cache.evictions(), 1);
        assert_eq!(cache.lookup(0, &[2; BLOCK]).tokens(), 0);
        assert_eq!(cache.lookup(0, &[1; BLOCK]).tokens(), BLOCK);
    }

    #[test]
    fn held_blocks_are_never_handed_out() {
        let mut cache = PrefixCache::new(2);
        put(&mut cache, &[1; BLOCK]);
        let held = cache.lookup(0, &[1; BLOCK]);
        let own = cache.allocate().unwrap();
        assert_ne!(own, held.blocks[0]);
        assert_eq!(cache.allocate(), None);
    }

    #[test]
    fn what_one_state_of_weights_knows_is_not_found_from_another() {
        let mut cache = PrefixCache::new(4);
        put(&mut cache, &[1; BLOCK]);
        assert_eq!(cache.lookup(1, &[1; BLOCK]), Prefix::default());
        let held = cache.lookup(0, &[1; BLOCK]);
        cache.forget(0);
        assert_eq!(cache.lookup(0, &[1; BLOCK]), Prefix::default());
        assert_eq!(cache.in_use(), 1, "a sequence keeps the block that it holds");
        cache.release(held.blocks[0]);
        assert_eq!((cache.in_use(), cache.available()), (0, 4));
    }

    proptest! {
        #[test]
        fn what_was_inserted_last_is_found_whole_and_nothing_leaks(
            all in prop::collection::vec((prop::collection::vec(0u32..3, 1..150), 0u64..3, any::<bool>()), 1..30)
        ) {
            let mut cache = PrefixCache::new(12);
            for (tokens, root, forgotten) in &all {
                if *forgotten {
                    cache.forget(root + 1);
                }
                let root = *root;
                let found = cache.lookup(root, tokens);
                prop_assert!(found.tokens() <= tokens.len());
                let mut blocks = found.blocks.clone();
                if let Some((tail, _)) = found.tail {
                    let own = cache.allocate();
                    cache.release(tail);
                    blocks.extend(own);
                }
                while blocks.len() * BLOCK < tokens.len() {
                    match cache.allocate() { Some(b) => blocks.push(b), None => break }
                }
                let covered = tokens.len().min(blocks.len() * BLOCK);
                cache.insert(root, &tokens[..covered], &mut blocks);
                let again = cache.lookup(root, &tokens[..covered]);
                prop_assert_eq!(again.tokens(), covered);
                again.blocks.iter().chain(again.tail.iter().map(|t| &t.0)).for_each(|b| cache.release(*b));
                for block in blocks {
                    cache.release(block);
                }
                prop_assert!(cache.in_use() <= 12);
                prop_assert_eq!(cache.available(), 12);
            }
        }
    }
}
