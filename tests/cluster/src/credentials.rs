//! Credentials: a certificate authority, the API server's certificate, a token and a kubeconfig
//! for each user.
//!
//! The authorisation is Kubernetes' own; only `admin` is in `system:masters`.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::layout::Layout;
use crate::node::Node;

struct User {
    /// Its kubeconfig's name here.
    file: String,
    name: String,
    groups: &'static str,
}

const API_SERVER_NAMES: &[&str] = &[
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The first of the Services' addresses is the API server's.
const API_SERVER_ADDRESSES: &[&str] = &["127.0.0.1", "10.96.0.1"];

pub(crate) fn create(layout: &Layout, nodes: impl Iterator<Item = Node>) -> Result<()> {
    let pki = layout.path("pki");
    let authority = authority(&pki)?;
    issue(&pki, "apiserver", api_server()?, &authority)?;
    issue(&pki, "kubelet-client", kubelet_client(), &authority)?;
    let accounts = KeyPair::generate()?;
    write(&pki.join("service-accounts.key"), &accounts.serialize_pem())?;
    write(&pki.join("service-accounts.pub"), &accounts.public_key_pem())?;
    let users = users().into_iter().chain(nodes.map(kubelet));
    admit(layout, users)
}

fn authority(pki: &Path) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Portcullis test cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    write(&pki.join("ca.crt"), &authority.pem())?;
    write(&pki.join("ca.key"), &authority.key().serialize_pem())?;
    Ok(authority)
}

fn api_server() -> Result<CertificateParams> {
    let names = API_SERVER_NAMES.iter().map(|&name| name.to_owned());
    let mut params = CertificateParams::new(names.collect::<Vec<_>>())?;
    let own = Node::FIRST.address();
    for address in API_SERVER_ADDRESSES.iter().copied().chain([own.as_str()]) {
        params.subject_alt_names.push(SanType::IpAddress(address.parse::<IpAddr>()?));
    }
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// As whom the API server talks to kubelet.
fn kubelet_client() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn issue(
    pki: &Path,
    name: &str,
    params: CertificateParams,
    authority: &CertifiedIssuer<'_, KeyPair>,
) -> Result<()> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    write(&pki.join(format!("{name}.crt")), &certificate.pem())?;
    write(&pki.join(format!("{name}.key")), &key.serialize_pem())
}

fn users() -> [User; 3] {
    let user = |file: &str, name: &str, groups| User { file: file.to_owned(), name: name.to_owned(), groups };
    [
        user("admin", "admin", "system:masters"),
        user("controller-manager", "system:kube-controller-manager", ""),
        user("scheduler", "system:kube-scheduler", ""),
    ]
}

/// By this name the API server knows what is the node's business.
fn kubelet(node: Node) -> User {
    User { file: node.to_string(), name: format!("system:node:{node}"), groups: "system:nodes" }
}

fn admit(layout: &Layout, users: impl Iterator<Item = User>) -> Result<()> {
    let mut tokens = String::new();
    let server = Node::FIRST.address();
    for user in users {
        let token = token()?;
        tokens.push_str(&format!("{token},{},{},\"{}\"\n", user.name, user.file, user.groups));
        let place = layout.kubeconfig(&user.file);
        let values = [("USER", user.file.as_str()), ("TOKEN", &token), ("SERVER", &server)];
        layout.fill("kubeconfig.yaml", &place, &values)?;
        private(&place)?;
    }
    write(&layout.path("pki/tokens.csv"), &tokens)
}

fn token() -> Result<String> {
    let mut bytes = [0; 24];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write(place: &Path, text: &str) -> Result<()> {
    fs::write(place, text)?;
    private(place)
}

fn private(place: &Path) -> Result<()> {
    Ok(fs::set_permissions(place, Permissions::from_mode(0o600))?)
}
