//! What the examples of `tower-overload` share.
