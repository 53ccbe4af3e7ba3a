// SPDX-License-Identifier: Apache-2.0
//! A question's JSON as values of a template.
use crate::python;
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value};
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;

/// Without serde: twice as fast, and members keep the question's order.
pub fn value(j: Json) -> Value {
    match j {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (_, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s),
        Json::Array(a) => container(Value::from(a.into_iter().map(value).collect::<Vec<_>>())),
        Json::Object(o) => container(Value::from_pairs(o.into_iter().map(|(k, v)| (k, value(v))))),
    }
}

fn container(v: Value) -> Value {
    v.as_object().cloned().map_or(v, |o| Value::from_object(Container(o)))
}

pub fn is_of_the_question(v: &Value) -> bool {
    v.downcast_object_ref::<Container>().is_some()
}

/// A list or a dictionary that `~` prints as Python does: it goes by `render`, past the environment's formatter.
struct Container(DynObject);

impl Object for Container {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get_value_by_str(key)
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::str(&Value::from_dyn_object(self.clone())))
    }
}

impl fmt::Debug for Container {
    /// Within a list that a template has made.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::str(&Value::from_dyn_object(Arc::new(Container(self.0.clone())))))
    }
}
