//! The first step: a changed object, and who may depend on it.

use portcullis_model::{ObjectName, ParentKind};

use super::Translator;
use crate::listener::ParentKey;
use crate::{Change, Kind, Object, ObjectKey, infra};

/// The label by which an EndpointSlice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

impl Translator {
    pub(super) fn note(&mut self, change: Change) {
        let key = change.key();
        let before = (key.kind == Kind::EndpointSlice).then(|| self.objects.get(&key)).flatten();
        if !self.objects.apply(change) {
            return;
        }
        match key.kind {
            Kind::GatewayClass => self.class_changed(key),
            Kind::Gateway => {
                self.dirty.generated.insert(key.name.clone());
                self.dirty_parent(ParentKind::Gateway, key.name);
            }
            Kind::ListenerSet => self.dirty_parent(ParentKind::ListenerSet, key.name),
            Kind::HttpRoute | Kind::GrpcRoute => drop(self.dirty.routes.insert(key)),
            Kind::ReferenceGrant => self.grant_changed(&key.name.namespace),
            Kind::Service => self.service_changed(key.name),
            Kind::EndpointSlice => self.slice_changed(&key, before.as_ref()),
            Kind::Secret => self.secret_changed(&key.name),
            Kind::Namespace => self.namespace_changed(&key.name.name),
            Kind::Node => self.dirty.frontends.extend(self.roots.keys().cloned()),
            Kind::ConfigMap => {}
            Kind::GatewayParameters => self.parameters_changed(&key.name),
            Kind::CustomResourceDefinition => self.definition_changed(),
        }
    }

    fn dirty_parent(&mut self, kind: ParentKind, name: ObjectName) {
        self.dirty.declared.insert(ParentKey { kind, name });
    }

    fn class_changed(&mut self, key: ObjectKey) {
        let of_class =
            |gateway: &&ObjectName| self.objects.gateways[*gateway].spec.gateway_class_name == *key.name.name;
        let gateways = self.objects.gateways.keys().filter(of_class).cloned();
        let gateways: Vec<_> = gateways.collect();
        self.dirty.roots.extend(gateways.iter().cloned());
        let parents = gateways.into_iter().map(|name| ParentKey { kind: ParentKind::Gateway, name });
        self.dirty.declared.extend(parents);
        self.dirty.statuses.insert(key);
    }

    /// Rare, so nobody keeps a list of who refers to what.
    fn parameters_changed(&mut self, name: &ObjectName) {
        let classes = self.objects.gateway_classes.iter();
        let classes = classes.filter(|(_, class)| infra::class_refers(class, name));
        for class in classes.map(|(class, _)| class.clone()).collect::<Vec<_>>() {
            self.class_changed(ObjectKey { kind: Kind::GatewayClass, name: class });
        }
        let gateways = self.objects.gateways.iter();
        let gateways = gateways.filter(|(_, gateway)| infra::refers(gateway, name));
        self.dirty.roots.extend(gateways.map(|(gateway, _)| gateway.clone()));
    }

    /// Every GatewayClass says whether the installed release is a known one.
    fn definition_changed(&mut self) {
        let classes = self.objects.gateway_classes.keys().cloned();
        self.dirty.statuses.extend(classes.map(|name| ObjectKey { kind: Kind::GatewayClass, name }));
    }

    fn secret_changed(&mut self, name: &ObjectName) {
        self.certificates.forget(name);
        self.dirty.declared.extend(self.index.secrets.of(name).cloned());
    }

    /// Whoever refers into the namespace may do so now, or no longer.
    fn grant_changed(&mut self, namespace: &str) {
        self.references += 1;
        self.child_grants_changed(namespace);
        self.dirty.declared.extend(self.index.secrets.in_namespace(namespace).cloned());
        self.dirty.routes.extend(self.index.routes_by_service.in_namespace(namespace).cloned());
    }

    fn service_changed(&mut self, name: ObjectName) {
        self.references += 1;
        self.dirty.routes.extend(self.index.routes_by_service.of(&name).cloned());
        let service = self.objects.services.get(&name);
        self.dirty.frontends.extend(service.and_then(|service| infra::generated_for(service)));
        self.dirty.services.insert(name);
    }

    fn slice_changed(&mut self, key: &ObjectKey, before: Option<&Object>) {
        if let Some(service) = before.and_then(service_of) {
            self.index.slices_by_service.remove(&service, &key.name);
            self.dirty.services.insert(service);
        }
        if let Some(service) = self.objects.get(key).as_ref().and_then(service_of) {
            self.index.slices_by_service.insert(service.clone(), key.name.clone());
            self.dirty.services.insert(service);
        }
    }

    /// Its labels decide about children and routes that live there.
    fn namespace_changed(&mut self, namespace: &str) {
        for kind in [ParentKind::Gateway, ParentKind::ListenerSet] {
            let first = ParentKey { kind, name: ObjectName::new(namespace, "") };
            let units = self.units.range(first..).map(|(key, _)| key);
            let here = units.take_while(|key| key.kind == kind && *key.name.namespace == *namespace);
            self.dirty.places.extend(here.cloned());
        }
        self.labels_changed(namespace);
    }
}

fn service_of(object: &Object) -> Option<ObjectName> {
    let metadata = object.metadata();
    let service = metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
    Some(ObjectName::new(metadata.namespace.as_deref()?, service.as_str()))
}
