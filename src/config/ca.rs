//! A provider's own authorities: the PEM file that `ca_file` names.
//!
//! Read when the config is (so that a mistake is told at once) and again for each request (so that a renewed
//! file counts without a restart). The certificates are looked at one by one here, because what TLS cannot
//! parse it would silently leave out. Costs the file's size and its certificates, for one request.

use crate::budget::CA_FILE_BYTES;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::Read;
use std::path::Path;

/// The certificates of a PEM file, at least one; else what is wrong with it, with its path.
pub fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = path.display();
    let mut pem = Vec::new();
    std::fs::File::open(path)
        .and_then(|opened| opened.take(CA_FILE_BYTES as u64 + 1).read_to_end(&mut pem))
        .map_err(|error| format!("{file}: {error}"))?;
    if pem.len() > CA_FILE_BYTES {
        return Err(format!(
            "{file} is longer than {CA_FILE_BYTES} bytes: put only the authorities of this provider in it"
        ));
    }
    let mut found = Vec::new();
    for (at, certificate) in CertificateDer::pem_slice_iter(&pem).enumerate() {
        let at = at + 1;
        let certificate = certificate
            .map_err(|error| format!("certificate {at} in {file} is damaged ({error:?}): copy it anew"))?;
        // What can be no authority here would be none in the handshake.
        RootCertStore::empty().add(certificate.clone()).map_err(|error| {
            format!("certificate {at} in {file} cannot be used ({error}): it must be X.509 in PEM form")
        })?;
        found.push(certificate);
    }
    if found.is_empty() {
        return Err(format!(
            "{file} holds no certificate in PEM form (a block that begins with \
             \u{201c}-----BEGIN CERTIFICATE-----\u{201d})"
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dir;

    #[test]
    fn what_is_no_certificate_is_told_with_the_files_name() {
        let dir = Dir::new();
        let file = dir.path().join("ca.pem");
        let fault = || read(&file).unwrap_err();
        assert!(fault().contains("ca.pem: No such file"));
        for (text, part) in [
            ("", "holds no certificate"),
            ("hello", "holds no certificate"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "holds no certificate"),
            ("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n", "certificate 1"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "certificate 1"),
        ] {
            std::fs::write(&file, text).unwrap();
            assert!(fault().contains(part) && fault().contains("ca.pem"), "{text:?}: {}", fault());
        }
        std::fs::write(&file, "x".repeat(CA_FILE_BYTES + 1)).unwrap();
        assert!(fault().contains("longer than 32768 bytes"));
    }
}
