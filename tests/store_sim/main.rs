//! Stores on simulated drives: losses of power at any moment, and every kind of damage.

mod crash;
mod damage;
mod refusals;
mod rig;
mod world;
