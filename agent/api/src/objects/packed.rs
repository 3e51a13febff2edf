//! Routes as they are kept: JSON text instead of structures. There are tens of thousands of them,
//! their structures are mostly room for fields that are not used, and a route is looked at again
//! only when it has changed.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::ObjectName;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{Kind, MalformedField, Object};

/// An object as JSON text, a quarter of its size as a structure. Cheap to clone.
pub struct Packed<T>(Arc<Text<T>>);

struct Text<T> {
    name: ObjectName,
    json: Box<[u8]>,
    kind: PhantomData<fn() -> T>,
}

/// The type of the objects of a kind.
pub trait ObjectType: Clone {
    const KIND: Kind;

    fn metadata(&self) -> &ObjectMeta;

    /// The object as this type; `None` if it is of another kind.
    fn of(object: &Object) -> Option<Cow<'_, Self>>;
}

/// The form in which objects of a kind are kept.
pub(super) trait Keep: Sized {
    type Type: Clone;

    fn parse(manifest: Value) -> Result<Self, MalformedField>;

    /// `None` instead of a namespace for cluster-scoped kinds is the caller's matter.
    fn name(&self) -> ObjectName;

    fn metadata(&self) -> Cow<'_, ObjectMeta>;

    /// The object as a structure.
    fn whole(&self) -> Cow<'_, Self::Type>;

    /// Tells whether both are the very same value.
    fn is(&self, other: &Self) -> bool;
}

// === impl Packed ===

impl<T: ObjectType + Serialize + DeserializeOwned + Default> Packed<T> {
    pub fn new(object: &T) -> Self {
        let json = serde_json::to_vec(object).unwrap_or_default().into();
        Self(Arc::new(Text { name: name_of(object.metadata()), json, kind: PhantomData }))
    }

    pub fn unpack(&self) -> T {
        let unpacked = serde_json::from_slice(&self.0.json);
        debug_assert!(unpacked.is_ok(), "what was written by a type is read by it");
        unpacked.unwrap_or_default()
    }
}

impl<T> Packed<T> {
    /// Tells whether both are the very same value.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> PartialEq for Packed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.0.json == other.0.json
    }
}

impl<T> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0.json))
    }
}

impl<T: ObjectType + Serialize + DeserializeOwned + Default> Serialize for Packed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.unpack().serialize(serializer)
    }
}

impl<T> Keep for Packed<T>
where
    T: ObjectType + Serialize + DeserializeOwned + Default,
{
    type Type = T;

    fn parse(manifest: Value) -> Result<Self, MalformedField> {
        Ok(Self::new(&serde_path_to_error::deserialize::<_, T>(manifest)?))
    }

    fn name(&self) -> ObjectName {
        self.0.name.clone()
    }

    fn metadata(&self) -> Cow<'_, ObjectMeta> {
        Cow::Owned(self.unpack().metadata().clone())
    }

    fn whole(&self) -> Cow<'_, T> {
        Cow::Owned(self.unpack())
    }

    fn is(&self, other: &Self) -> bool {
        Self::is(self, other)
    }
}

// === impl Keep for Arc ===

impl<T: ObjectType + DeserializeOwned> Keep for Arc<T> {
    type Type = T;

    fn parse(manifest: Value) -> Result<Self, MalformedField> {
        serde_path_to_error::deserialize::<_, T>(manifest).map(Self::new)
    }

    fn name(&self) -> ObjectName {
        name_of(ObjectType::metadata(&**self))
    }

    fn metadata(&self) -> Cow<'_, ObjectMeta> {
        Cow::Borrowed(ObjectType::metadata(&**self))
    }

    fn whole(&self) -> Cow<'_, T> {
        Cow::Borrowed(self)
    }

    fn is(&self, other: &Self) -> bool {
        Self::ptr_eq(self, other)
    }
}

fn name_of(metadata: &ObjectMeta) -> ObjectName {
    ObjectName::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
