//! A container's arguments and environment as the kubelet resolves them, within limits.

use std::collections::BTreeMap;

use cni::protocol::Sandbox;
use contract::quantity;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TRUST_DOMAIN;
use crate::error::{Context, Result};

/// Istio's limit for one value. Linux' limit for one argument or variable is 128 KiB.
pub(super) const VALUE_LIMIT: usize = 64 * 1024;
/// Limits the arguments and variables of a program together: a pod's annotations and a `ProxyConfig` may refer to others' values.
const PROGRAM_LIMIT: usize = 512 * 1024;

/// Holds the arguments and the environment of pilot-agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The arguments after the program's name.
    pub args: Vec<String>,
    /// The variables by their names.
    pub environment: BTreeMap<String, String>,
}

/// Returns a container's arguments and environment as the kubelet resolves them. Values that are too long are left out. The trust
/// domain is the mesh's, which comes first: a `ProxyConfig` of the pod's namespace may have another one after it.
pub(super) fn program(container: &Container, pod: &Pod, sandbox: &Sandbox) -> Result<Program> {
    let (mut environment, mut size) = (BTreeMap::new(), 0);
    for variable in container.env.iter().flatten() {
        let is_mesh_wide = variable.name == TRUST_DOMAIN && environment.contains_key(TRUST_DOMAIN);
        if !is_mesh_wide
            && let Some(value) = resolve(variable, container, pod, sandbox)?
            && let Some(value) = expand(&value, &environment)
        {
            size = checked(size + value.len())?;
            environment.insert(variable.name.clone(), value);
        }
    }
    let mut args = Vec::new();
    for argument in container.args.iter().flatten() {
        let argument = expand(argument, &environment).context("an argument is longer than 64 KiB")?;
        size = checked(size + argument.len())?;
        args.push(argument);
    }
    Ok(Program { args, environment })
}

/// Fails where the values of a program are larger than their limit.
fn checked(size: usize) -> Result<usize> {
    (size <= PROGRAM_LIMIT).then_some(size).context("its arguments and variables are larger than 512 KiB")
}

/// Returns a variable's value; `None` for a limit that the container does not have.
fn resolve(variable: &EnvVar, container: &Container, pod: &Pod, sandbox: &Sandbox) -> Result<Option<String>> {
    let Some(source) = &variable.value_from else { return Ok(variable.value.clone()) };
    if let Some(field) = &source.field_ref {
        return field_of(&field.field_path, pod, sandbox).map(Some);
    }
    let resource = source.resource_field_ref.as_ref();
    let resource = resource.context(format_args!("variable {} is from neither a field nor a limit", variable.name))?;
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let limit = limits.and_then(|limits| limits.get(resource.resource.strip_prefix("limits.")?));
    Ok(limit.and_then(|limit| quantity::rounded_up(&limit.0)).map(|limit| limit.to_string()))
}

/// Returns a field of the pod, as the downward API does. Its addresses are the sandbox': the API server learns them later.
fn field_of(path: &str, pod: &Pod, sandbox: &Sandbox) -> Result<String> {
    let addresses = || sandbox.addresses.iter().map(ToString::to_string);
    if let Some(key) = path.strip_prefix("metadata.labels['").and_then(|rest| rest.strip_suffix("']")) {
        return Ok(pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "status.podIP" => return Ok(addresses().next().unwrap_or_default()),
        "status.podIPs" => return Ok(addresses().collect::<Vec<_>>().join(",")),
        _ => {}
    }
    let pod = serde_json::to_value(pod)?;
    Ok(pod.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// Expands `$(NAME)` as the kubelet does: unknown names stay, and `$$` is a `$`. Returns `None` beyond the limit.
fn expand(text: &str, environment: &BTreeMap<String, String>) -> Option<String> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$').filter(|_| expanded.len() <= VALUE_LIMIT) {
        expanded += &rest[..at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match environment.get(name) {
                Some(value) => expanded += value,
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    (expanded.len() + rest.len() <= VALUE_LIMIT).then(|| expanded + rest)
}
