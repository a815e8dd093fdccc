use particles::{Particle, step};

#[test]
fn a_particle_moves_by_its_velocity() {
    let now = Particle { position: [1.0, 2.0, 3.0], velocity: [0.5, 0.0, -1.0] };
    let mut then = now;
    step(&now, &mut then);
    assert_eq!(then.position, [1.5, 2.0, 2.0]);
}
