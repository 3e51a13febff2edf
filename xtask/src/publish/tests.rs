//! Published to a real registry, and read from there by other programs than those that wrote it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use portcullis_testbed::{build, command, helm};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A registry in memory, which ends with it.
struct Server {
    process: Child,
    host: String,
    directory: TempDir,
}

impl Server {
    fn start() -> Self {
        let mut crane = Command::new(registry::program().unwrap());
        crane.args(["registry", "serve", "--address", "127.0.0.1:0"]);
        let mut process = crane.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = log.find(|line| line.contains("serving on port")).unwrap();
        let port = line.rsplit_once(' ').unwrap().1.to_owned();
        std::thread::spawn(move || log.for_each(drop));
        Self { process, host: format!("127.0.0.1:{port}"), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn publish(&self, program: &Path, key: Option<PathBuf>, replace: bool) -> Result<()> {
        self.publish_as("0.1.0", &[program], key, replace)
    }

    fn publish_as(&self, tag: &str, programs: &[&Path], key: Option<PathBuf>, replace: bool) -> Result<()> {
        run(&Args {
            repository: format!("{}/team/portcullis", self.host).parse()?,
            tag: tag.parse()?,
            architecture: Vec::new(),
            binary: programs.iter().map(|program| program.to_path_buf()).collect(),
            key,
            replace,
            plain_http: true,
        })
    }

    /// Of the image's repository.
    fn crane(&self, command: &str, reference: &str) -> String {
        let mut crane = Command::new(registry::program().unwrap());
        crane.arg(command).arg(format!("{}/team/{reference}", self.host));
        command::output(&mut crane).unwrap()
    }

    fn manifest(&self, reference: &str) -> Value {
        serde_json::from_str(&self.crane("manifest", reference)).unwrap()
    }

    /// The content of the only layer.
    fn content(&self, reference: &str) -> String {
        let repository = reference.split([':', '@']).next().unwrap();
        let digest = self.manifest(reference)["layers"][0]["digest"].as_str().unwrap().to_owned();
        self.crane("blob", &format!("{repository}@{digest}"))
    }

    /// A static program that lists itself and one crate, as cargo-auditable has it.
    fn program(&self, answer: u8) -> PathBuf {
        self.program_of(&format!("int main(void) {{ return {answer}; }}"))
    }

    fn program_of(&self, code: &str) -> PathBuf {
        let [source, list, program] = ["main.c", "list", "published"].map(|name| self.path(name));
        fs::write(&source, code).unwrap();
        let crates = json!({ "packages": [
            { "name": "anyhow", "version": "1.0.0", "source": "crates.io" },
            { "name": "portcullis", "version": "0.1.0", "source": "local", "dependencies": [0], "root": true },
        ] });
        let mut encoder = ZlibEncoder::new(fs::File::create(&list).unwrap(), Compression::default());
        encoder.write_all(crates.to_string().as_bytes()).unwrap();
        encoder.finish().unwrap();
        command::output(Command::new("cc").arg("-static-pie").arg("-o").arg(&program).arg(&source)).unwrap();
        let section = format!(".dep-v0={}", list.display());
        command::output(Command::new("objcopy").args(["--add-section", &section]).arg(&program)).unwrap();
        program
    }

    /// The key and the public one to it.
    fn key(&self) -> [PathBuf; 2] {
        let [key, public] = ["key.pem", "public.pem"].map(|name| self.path(name));
        openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"], &key);
        let mut pair = Command::new("openssl");
        pair.args(["pkey", "-pubout", "-in"]).arg(&key).arg("-out").arg(&public);
        command::output(&mut pair).unwrap();
        [key, public]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn openssl(arguments: &[&str], file: &Path) {
    command::output(Command::new("openssl").args(arguments).arg(file)).unwrap();
}

#[test]
fn an_image_is_published_with_its_parts_and_a_chart_that_pins_it_and_all_is_signed() {
    let server = Server::start();
    let program = server.program(0);
    let [key, public] = server.key();
    fs::write(build::profile_of(&program), "how often").unwrap();
    server.publish(&program, Some(key), false).unwrap();
    let digest = server.crane("digest", "portcullis:0.1.0").trim().to_owned();
    let name = digest.replace(':', "-");

    let sbom: Value = serde_json::from_str(&server.content(&format!("portcullis:{name}.sbom"))).unwrap();
    assert_eq!(sbom["metadata"]["component"]["name"], "portcullis");
    let names: Vec<_> = sbom["components"].as_array().unwrap().iter().map(|part| &part["name"]).collect();
    assert!(names.contains(&&json!("anyhow")) && names.contains(&&json!("aya-ebpf")), "{names:?}");
    let on = json!({ "ref": "pkg:cargo/portcullis@0.1.0", "dependsOn": ["pkg:cargo/anyhow@1.0.0"] });
    assert!(sbom["dependencies"].as_array().unwrap().contains(&on), "{sbom}");
    let referrers = server.manifest(&format!("portcullis:{name}"));
    let attached = referrers["manifests"].as_array().unwrap().iter().map(|it| &it["artifactType"]);
    assert_eq!(attached.collect::<Vec<_>>(), [SBOM.0, PROFILE.0]);
    assert_eq!(server.content(&format!("portcullis:{name}.profdata")), "how often");

    let chart = format!("oci://{}/team/charts/portcullis", server.host);
    let mut template = helm::isolated(Command::new(helm::program().unwrap()));
    template.args(["template", "portcullis", &chart, "--version", "0.1.0", "--plain-http"]);
    let rendered = command::output(&mut template).unwrap();
    assert!(rendered.contains(&format!("image: {}/team/portcullis@{digest}", server.host)), "{rendered}");

    let of_chart = server.crane("digest", "charts/portcullis:0.1.0").trim().to_owned();
    for (repository, digest) in [("portcullis", digest), ("charts/portcullis", of_chart.clone())] {
        let reference = format!("{repository}:{}.sig", digest.replace(':', "-"));
        let layer = server.manifest(&reference)["layers"][0].clone();
        let signature = layer["annotations"]["dev.cosignproject.cosign/signature"].as_str().unwrap();
        let [payload, encoded, decoded] = ["payload", "signature.b64", "signature"].map(|it| server.path(it));
        fs::write(&payload, server.content(&reference)).unwrap();
        assert!(fs::read_to_string(&payload).unwrap().contains(&digest));
        fs::write(&encoded, signature).unwrap();
        let mut decode = Command::new("openssl");
        decode.args(["base64", "-d", "-A", "-in"]).arg(encoded).arg("-out").arg(&decoded);
        command::output(&mut decode).unwrap();
        let mut verify = Command::new("openssl");
        verify.args(["dgst", "-sha256", "-verify"]).arg(&public).arg("-signature").arg(decoded).arg(payload);
        command::output(&mut verify).unwrap();
    }

    // A tag stays what it is, unless it is said, and so does the chart, whose signature is for it.
    server.publish(&program, None, false).unwrap();
    assert_eq!(server.crane("digest", "charts/portcullis:0.1.0").trim(), of_chart);
    let other = server.program(1);
    let refused = server.publish(&other, None, false).unwrap_err().to_string();
    assert!(refused.contains("0.1.0 is published already") && refused.contains("--replace"), "{refused}");
    // Under another tag it would have been the image of the chart of this version.
    let refused = server.publish_as("0.1.0-rc.1", &[&other], None, false).unwrap_err().to_string();
    assert!(refused.contains("charts/portcullis:0.1.0 is published already"), "{refused}");
    let mut list = Command::new(registry::program().unwrap());
    let tags = command::output(list.args(["ls", &format!("{}/team/portcullis", server.host)])).unwrap();
    assert!(!tags.contains("rc.1"), "{tags}");
    server.publish(&other, None, true).unwrap();

    // Keys are looked at before anything is published.
    let rsa = server.path("rsa.pem");
    openssl(&["genrsa", "-out"], &rsa);
    let encrypted = server.path("encrypted.pem");
    fs::write(&encrypted, "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----").unwrap();
    for (key, problem) in
        [(rsa, "no ECDSA key"), (encrypted, "is encrypted"), (server.path("none"), "cannot read --key")]
    {
        let refused = server.publish(&other, Some(key), true).unwrap_err().to_string();
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn a_program_that_names_files_of_this_machine_is_not_published() {
    let server = Server::start();
    let source = workspace::root().join("agent/src/main.rs");
    let code = format!("#include <stdio.h>\nint main(void) {{ return puts(\"{}\"); }}", source.display());
    let refused = server.publish(&server.program_of(&code), None, false).unwrap_err().to_string();
    assert!(refused.contains("names files in") && refused.contains("/agent,"), "{refused}");
}

#[test]
fn images_for_several_processors_have_one_tag() {
    let server = Server::start();
    let amd64 = server.program(0);
    let arm64 = server.path("arm64");
    let mut bytes = fs::read(&amd64).unwrap();
    bytes[18..20].copy_from_slice(&object::elf::EM_AARCH64.0.to_le_bytes());
    fs::write(&arm64, bytes).unwrap();
    let [key, _] = server.key();

    let twice = server.publish_as("0.1.0", &[&amd64, &amd64], None, false).unwrap_err().to_string();
    assert!(twice.contains("is the second program for amd64"), "{twice}");
    server.publish_as("0.1.0", &[&arm64, &amd64], Some(key), false).unwrap();

    let index = server.manifest("portcullis:0.1.0");
    let entries = index["manifests"].as_array().unwrap();
    let processors: Vec<_> = entries.iter().map(|entry| &entry["platform"]["architecture"]).collect();
    assert_eq!(processors, ["amd64", "arm64"]);
    let digest = server.crane("digest", "portcullis:0.1.0").trim().to_owned();
    for entry in entries {
        let image = entry["digest"].as_str().unwrap();
        let manifest = server.manifest(&format!("portcullis@{image}"));
        let config = manifest["config"]["digest"].as_str().unwrap();
        let config: Value =
            serde_json::from_str(&server.crane("blob", &format!("portcullis@{config}"))).unwrap();
        assert_eq!(config["architecture"], entry["platform"]["architecture"]);
        server.manifest(&format!("portcullis:{}.sbom", image.replace(':', "-")));
        server.manifest(&format!("portcullis:{}.sig", image.replace(':', "-")));
    }
    server.manifest(&format!("portcullis:{}.sig", digest.replace(':', "-")));
    // The order in which programs are named changes nothing.
    server.publish_as("0.1.0", &[&amd64, &arm64], None, false).unwrap();
}

#[test]
fn repositories_have_a_host_and_no_tag() {
    for (text, charts) in [
        ("registry.example/portcullis", "registry.example/charts"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/charts"),
    ] {
        let repository: Repository = text.parse().unwrap();
        assert_eq!(
            (repository.to_string(), repository.charts().to_string()),
            (text.to_owned(), charts.to_owned())
        );
    }
    for text in [
        "portcullis",
        "/portcullis",
        "host/",
        "host/a:1",
        "host/a@sha256:0",
        "host/A",
        "host/a/",
        "host/a b",
        "-o/a",
    ] {
        assert!(text.parse::<Repository>().is_err(), "{text}");
    }
    let refused = "user:secret@host/a".parse::<Repository>().unwrap_err().to_string();
    assert!(refused.contains("password") && !refused.contains("secret"), "{refused}");
    for text in ["", "a b", "-a", "a@sha256:0", "a:b", "../a", "sha256-0.sig"] {
        assert!(text.parse::<Tag>().is_err(), "{text}");
    }
}

/// A registry that fails, for the time of a question, has not said that there is nothing.
#[test]
fn a_tag_that_cannot_be_asked_for_is_not_replaced() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::from("begin");
            while !line.trim().is_empty()
                && request
                    .read_line({
                        line.clear();
                        &mut line
                    })
                    .is_ok()
            {}
            let _ =
                stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let registry = Registry::new(Transport::Plain).unwrap();
    let repository: Repository = format!("{host}/team/portcullis").parse().unwrap();
    let refused = registry.digest(&repository, &Tag::of_version()).unwrap_err().to_string();
    assert!(refused.contains("does not say"), "{refused}");
}
