//! Names of generated structs. By default a struct is named after its kind and path, as in
//! `GatewayTlsFrontend`; here are the better names, and those of shapes that several places share.
//! Narrow forms of a status (without the fields of route delegation) take the wide form's name and
//! become one type with it.

/// From the default name of any place where the shape occurs.
const NAMES: &[(&str, &str)] = &[
    ("GatewayAllowedListeners", "AllowedAttachments"),
    ("GatewayAllowedListenersNamespaces", "AllowedNamespaces"),
    ("GatewayAllowedListenersNamespacesSelector", "LabelSelector"),
    ("GatewayAllowedListenersNamespacesSelectorMatchExpressions", "LabelSelectorRequirement"),
    ("GatewayClassParametersRef", "NamespacedObjectReference"),
    ("GatewayClassStatus", "ClassStatus"),
    ("GatewayClassStatusSupportedFeatures", "SupportedFeature"),
    ("GatewayInfrastructureAttachTo", "ObjectReference"),
    ("GatewayInfrastructureParametersRef", "LocalObjectReference"),
    ("GatewayListeners", "ListenerSpec"),
    ("GatewayListenersAllowedRoutes", "AllowedRoutes"),
    ("GatewayListenersAllowedRoutesKinds", "RouteGroupKind"),
    ("GatewayListenersFilters", "ListenerFilters"),
    ("GatewayListenersFiltersRequests", "ListenerRequestFilter"),
    ("GatewayListenersFiltersRequestsExternalAuth", "ExternalAuth"),
    ("GatewayListenersFiltersRequestsExternalAuthBackendRef", "BackendObjectReference"),
    ("GatewayListenersFiltersRequestsExternalAuthForwardBody", "ExternalAuthForwardBody"),
    ("GatewayListenersFiltersRequestsExternalAuthGrpc", "ExternalAuthGrpc"),
    ("GatewayListenersFiltersRequestsExternalAuthHttp", "ExternalAuthHttp"),
    ("GatewayListenersTls", "ListenerTls"),
    ("GatewayStatusListeners", "ListenerStatus"),
    ("GatewayTlsFrontendDefault", "FrontendTls"),
    ("GatewayTlsFrontendDefaultValidation", "FrontendTlsValidation"),
    ("GrpcRouteParentRefs", "ParentReference"),
    ("GrpcRouteRules", "GrpcRouteRule"),
    ("GrpcRouteRulesBackendRefs", "GrpcBackendReference"),
    ("GrpcRouteRulesBackendRefsFilters", "GrpcRouteFilter"),
    ("GrpcRouteRulesBackendRefsFiltersRequestHeaderModifier", "HeaderModifier"),
    ("GrpcRouteRulesBackendRefsFiltersRequestHeaderModifierAdd", "HeaderValue"),
    ("GrpcRouteRulesBackendRefsFiltersRequestMirror", "RequestMirror"),
    ("GrpcRouteRulesBackendRefsFiltersRequestMirrorFraction", "Fraction"),
    ("GrpcRouteRulesMatches", "GrpcRouteMatch"),
    ("GrpcRouteRulesMatchesHeaders", "NamedMatch"),
    ("GrpcRouteRulesMatchesMethod", "GrpcMethodMatch"),
    ("GrpcRouteRulesSessionPersistence", "SessionPersistence"),
    ("GrpcRouteRulesSessionPersistenceCookie", "SessionCookie"),
    ("GrpcRouteStatus", "RouteStatus"),
    ("GrpcRouteStatusParents", "RouteParentStatus"),
    ("GrpcRouteStatusParentsGrandparents", "GrandparentStatus"),
    ("HttpRouteRules", "HttpRouteRule"),
    ("HttpRouteRulesBackendRefs", "HttpBackendReference"),
    ("HttpRouteRulesBackendRefsFilters", "HttpRouteFilter"),
    ("HttpRouteRulesBackendRefsFiltersCors", "Cors"),
    ("HttpRouteRulesBackendRefsFiltersRequestRedirect", "RequestRedirect"),
    ("HttpRouteRulesBackendRefsFiltersRequestRedirectPath", "PathModifier"),
    ("HttpRouteRulesBackendRefsFiltersUrlRewrite", "UrlRewrite"),
    ("HttpRouteRulesMatches", "HttpRouteMatch"),
    ("HttpRouteRulesMatchesPath", "HttpPathMatch"),
    ("HttpRouteRulesRetry", "HttpRouteRetry"),
    ("HttpRouteRulesTimeouts", "HttpRouteTimeouts"),
];

pub(super) fn better(default: &str) -> Option<&'static str> {
    NAMES.iter().find(|(from, _)| *from == default).map(|(_, to)| *to)
}
