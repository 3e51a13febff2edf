//! Stage: which objects are attached to which Gateway (GEP-1713).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::Objects;
use portcullis_api::types::gateways::Gateway;
use portcullis_model::{ObjectName, ParentKind};

use super::changes::ChangedObjects;
use super::listeners::{ChangedListeners, Listeners};
use super::relation::Relation;
use crate::Fault;
use crate::listener::ParentKey;
use crate::parent::{self, AttachTo};
use crate::selector::Namespaces;

#[derive(Debug, Default)]
pub(super) struct Hierarchy {
    nodes: BTreeMap<ParentKey, Node>,
    /// The objects that ask to be children of a Gateway, admitted or not.
    candidates: Relation<ObjectName, ParentKey>,
    /// By Gateway with addresses of its own, the children it admits.
    children: BTreeMap<ObjectName, BTreeMap<Rank, ParentKey>>,
}

/// A Gateway or a ListenerSet.
#[derive(Debug)]
pub(super) struct Node {
    /// The Gateway it asks to be a child of.
    pub(super) parent: Option<ObjectName>,
    pub(super) attachment: Attachment,
    rank: Rank,
}

/// The relation of an object to other Gateways.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attachment {
    /// A Gateway with addresses of its own.
    Independent,
    /// A child of the Gateway.
    Child(ObjectName),
    /// It asks to be a child, but may not.
    Refused(Fault),
    /// The Gateway that it asks for is not ours.
    Foreign,
}

/// Children of a Gateway in order of precedence.
type Rank = (i64, String, ParentKind);

#[derive(Debug, Default)]
pub(super) struct ChangedHierarchy {
    /// The objects that are attached to another Gateway, or differently, or are gone.
    pub(super) moved: BTreeSet<ParentKey>,
    /// Gateways with other children than before, or another place for one of them; those that are
    /// gone, too.
    pub(super) gateways: BTreeSet<ObjectName>,
    /// The objects that ask for a Gateway which may have come or gone.
    pub(super) candidates: BTreeSet<ParentKey>,
}

// === impl Hierarchy ===

impl Hierarchy {
    pub(super) fn get(&self, key: &ParentKey) -> Option<&Node> {
        self.nodes.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ParentKey> {
        self.nodes.keys()
    }

    /// The Gateway that an object's listeners are merged into: its parent, or itself.
    pub(super) fn gateway_of(&self, key: &ParentKey) -> Option<&ObjectName> {
        let (own, node) = self.nodes.get_key_value(key)?;
        node.gateway(own)
    }

    /// True if the Gateway exists, is ours and has addresses of its own.
    pub(super) fn is_independent(&self, gateway: &ObjectName) -> bool {
        self.children.contains_key(gateway)
    }

    /// The children of a Gateway in order of precedence.
    pub(super) fn children(&self, gateway: &ObjectName) -> impl Iterator<Item = &ParentKey> + Clone {
        self.children.get(gateway).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        judged: &ChangedListeners,
        listeners: &Listeners,
        objects: &Objects,
    ) -> ChangedHierarchy {
        let mut now_changed = ChangedHierarchy::default();
        for key in &judged.parents {
            self.update_node(key, listeners, objects, &mut now_changed);
            if key.kind == ParentKind::Gateway {
                now_changed.candidates.extend(self.candidates.of(&key.name).cloned());
            }
        }
        let mut affected = judged.parents.union(&now_changed.candidates).cloned().collect::<BTreeSet<_>>();
        for namespace in changed.relabelled_namespaces() {
            affected.extend(self.in_namespace(namespace));
        }
        for key in affected {
            let Some(attachment) = self.attachment_of(&key, listeners, objects) else { continue };
            let Some(declared) = listeners.get(&key) else { continue };
            let rank = parent::precedence(declared.created, key.kind, &key.name);
            self.attach(key, attachment, rank, &mut now_changed);
        }
        now_changed
    }

    /// Takes note of what the object asks for; a new one is attached to nothing yet.
    fn update_node(
        &mut self,
        key: &ParentKey,
        listeners: &Listeners,
        objects: &Objects,
        changed: &mut ChangedHierarchy,
    ) {
        let parent_before = self.nodes.get(key).and_then(|node| node.parent.clone());
        let Some(declared) = listeners.get(key) else {
            self.candidates.update(key, &parent_before.into_iter().collect(), &BTreeSet::new());
            if let Some(node) = self.nodes.remove(key) {
                self.leave(key, &node, changed);
                changed.moved.insert(key.clone());
            }
            return;
        };
        let parent = asked_parent(key, objects);
        let (before, now) = (parent_before.into_iter().collect(), parent.clone().into_iter().collect());
        self.candidates.update(key, &before, &now);
        match self.nodes.get_mut(key) {
            Some(node) => node.parent = parent,
            None => {
                let rank = parent::precedence(declared.created, key.kind, &key.name);
                let node = Node { parent, attachment: Attachment::Foreign, rank };
                self.nodes.insert(key.clone(), node);
            }
        }
    }

    /// The labels of a namespace decide about children that live there.
    fn in_namespace(&self, namespace: &Arc<str>) -> impl Iterator<Item = ParentKey> {
        [ParentKind::Gateway, ParentKind::ListenerSet].into_iter().flat_map(move |kind| {
            let first = ParentKey { kind, name: ObjectName::new(namespace.clone(), "") };
            let nodes = self.nodes.range(first..).map(|(key, _)| key);
            nodes.take_while(move |key| key.kind == kind && key.name.namespace == *namespace).cloned()
        })
    }

    fn attachment_of(&self, key: &ParentKey, listeners: &Listeners, objects: &Objects) -> Option<Attachment> {
        let node = self.nodes.get(key)?;
        let namespaces = Namespaces::new(objects);
        Some(match key.kind {
            ParentKind::Gateway => {
                let gateway = objects.gateways.get(&key.name)?;
                match parent::parent_of_gateway(gateway) {
                    AttachTo::Nothing => Attachment::Independent,
                    AttachTo::Unsupported(fault) => Attachment::Refused(fault),
                    AttachTo::Gateway(name) => {
                        let parent = our_gateway(&name, listeners, objects);
                        parent::refuse_gateway(gateway, parent, namespaces)
                            .map_or(Attachment::Child(name), Attachment::Refused)
                    }
                }
            }
            ParentKind::ListenerSet => {
                let set = objects.listener_sets.get(&key.name)?;
                if let Some(fault) = parent::unsupported_parent(set) {
                    return Some(Attachment::Refused(fault));
                }
                let parent = node.parent.as_ref();
                match parent.and_then(|name| Some((name, our_gateway(name, listeners, objects)?))) {
                    None => Attachment::Foreign,
                    Some((name, gateway)) => parent::refuse_set(&key.name.namespace, gateway, namespaces)
                        .map_or_else(|| Attachment::Child(name.clone()), Attachment::Refused),
                }
            }
        })
    }

    fn attach(&mut self, key: ParentKey, attachment: Attachment, rank: Rank, changed: &mut ChangedHierarchy) {
        let Some(mut node) = self.nodes.remove(&key) else { return };
        if node.attachment != attachment {
            self.leave(&key, &node, changed);
            (node.attachment, node.rank) = (attachment, rank);
            self.enter(&key, &node, changed);
            changed.moved.insert(key.clone());
        } else if node.rank != rank {
            // Created anew with another age: among the children it has another place.
            self.leave_parent(&node);
            node.rank = rank;
            self.enter(&key, &node, changed);
        }
        self.nodes.insert(key, node);
    }

    fn leave(&mut self, key: &ParentKey, node: &Node, changed: &mut ChangedHierarchy) {
        if node.attachment == Attachment::Independent {
            self.children.remove(&key.name);
        }
        self.leave_parent(node);
        changed.gateways.extend(node.gateway(key).cloned());
    }

    fn leave_parent(&mut self, node: &Node) {
        if let Attachment::Child(gateway) = &node.attachment {
            self.children.get_mut(gateway).and_then(|children| children.remove(&node.rank));
        }
    }

    fn enter(&mut self, key: &ParentKey, node: &Node, changed: &mut ChangedHierarchy) {
        let Some(gateway) = node.gateway(key) else { return };
        let children = self.children.entry(gateway.clone()).or_default();
        if node.attachment != Attachment::Independent {
            children.insert(node.rank.clone(), key.clone());
        }
        changed.gateways.insert(gateway.clone());
    }
}

impl Node {
    fn gateway<'n>(&'n self, own: &'n ParentKey) -> Option<&'n ObjectName> {
        match &self.attachment {
            Attachment::Independent => Some(&own.name),
            Attachment::Child(gateway) => Some(gateway),
            Attachment::Refused(_) | Attachment::Foreign => None,
        }
    }
}

fn asked_parent(key: &ParentKey, objects: &Objects) -> Option<ObjectName> {
    match key.kind {
        ParentKind::Gateway => match parent::parent_of_gateway(objects.gateways.get(&key.name)?) {
            AttachTo::Gateway(name) => Some(name),
            AttachTo::Nothing | AttachTo::Unsupported(_) => None,
        },
        ParentKind::ListenerSet => parent::parent_of_set(objects.listener_sets.get(&key.name)?),
    }
}

fn our_gateway<'o>(name: &ObjectName, listeners: &Listeners, objects: &'o Objects) -> Option<&'o Gateway> {
    let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
    listeners.contains(&key).then(|| objects.gateways.get(name).map(|gateway| &**gateway))?
}
