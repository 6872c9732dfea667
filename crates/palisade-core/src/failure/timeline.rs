//! Scripted timelines.
