//! Objects of any kind in a scenario's namespace.

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::gvk::GroupVersionKind;
use serde_json::Value;

use super::Namespace;

impl Namespace {
    /// Creates an object of any kind.
    pub async fn create_object(&self, object: Value) -> Value {
        self.try_create(object).await.expect("the object is created")
    }

    /// Creates objects of any kind, one after the other.
    pub async fn create_objects(&self, objects: impl IntoIterator<Item = Value>) {
        for object in objects {
            self.create_object(object).await;
        }
    }

    /// Returns what the API server makes of an object, with all its webhooks, without storing it.
    pub async fn dry_run(&self, object: Value) -> Value {
        self.try_dry_run(object).await.expect("the dry run passes")
    }

    /// Returns the same, or the API server's refusal.
    pub async fn try_dry_run(&self, object: Value) -> kube::Result<Value> {
        self.post(object, &PostParams { dry_run: true, ..PostParams::default() }).await
    }

    /// Creates an object of any kind, or returns the API server's refusal.
    pub async fn try_create(&self, object: Value) -> kube::Result<Value> {
        self.post(object, &PostParams::default()).await
    }

    async fn post(&self, object: Value, parameters: &PostParams) -> kube::Result<Value> {
        let api = self.objects(&object);
        let made = api.create(parameters, &serde_json::from_value(object).expect("the object is of its kind")).await?;
        Ok(json_of(&made))
    }

    /// Returns the objects of the kind of this one.
    pub fn objects(&self, object: &Value) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.name, &resource_of(object))
    }

    /// Returns an object as it is now, by the kind and name of `like`.
    pub async fn get(&self, like: &Value) -> Value {
        json_of(&self.objects(like).get(name_of(like)).await.expect("the object is read"))
    }

    /// Returns an object by the kind and name of `like`; `None` where there is none.
    pub async fn find(&self, like: &Value) -> Option<Value> {
        let object = self.objects(like).get_opt(name_of(like)).await.expect("the object is read");
        object.as_ref().map(json_of)
    }

    /// Returns the objects of the kind of `like` with a label, `key=value`.
    pub async fn list(&self, like: &Value, label: &str) -> Vec<Value> {
        let objects = self.objects(like).list(&ListParams::default().labels(label)).await.expect("objects are listed");
        objects.iter().map(json_of).collect()
    }

    /// Changes an object, by the kind and name of `like`, as `kubectl patch --type=merge` does.
    pub async fn patch(&self, like: &Value, patch: Value) {
        let patched = self.objects(like).patch(name_of(like), &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("the object is changed");
    }

    /// Deletes an object, by the kind and name of `like`, and what belongs to it.
    pub async fn delete(&self, like: &Value) {
        let deleted = self.objects(like).delete(name_of(like), &DeleteParams::background()).await;
        deleted.expect("the object is deleted");
    }
}

/// Returns the name in an object's metadata.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("an object has a name")
}

/// Returns the kind of an object, as a client addresses it.
pub fn resource_of(object: &Value) -> ApiResource {
    let text = |field: &str| object[field].as_str().expect("an object has apiVersion and kind");
    let api_version = text("apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")))
}

fn json_of(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}
