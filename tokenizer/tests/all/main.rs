// SPDX-License-Identifier: Apache-2.0
//! All tests are one program: linking one takes half a minute.
mod capi;
mod chats;
mod dates;
mod matrix;
mod models;
mod segments;
mod sglang;
mod templates;
mod turns;
