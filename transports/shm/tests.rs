//! Peers that do not keep to the protocol, against a NIC that does.

mod hostile {
    //! An attacker speaks with a NIC over the real socket and the real shared memory, and writes there what it likes. Every
    //! call of the NIC's program must then return, with `Ok` or an error of that one connection, and nobody else may be
    //! disturbed. (Memory errors would end the test program.)

    mod attacker;
    mod garbage;
    mod lies;
    mod many;
    mod panics;
    mod shortage;
    mod slow;
    mod strangers;
    mod told;
    mod victim;
    mod windows;
    mod words;
}
