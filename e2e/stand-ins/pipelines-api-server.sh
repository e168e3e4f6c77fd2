#!/bin/sh
# A stand-in for the API server of Kubeflow Pipelines, as a CGI program. Like that server it answers 401 unless a TokenReview
# accepts the token for the audience pipelines.kubeflow.org, and 403 unless a SubjectAccessReview lets the token's user list
# pipelines.kubeflow.org/runs in the namespace of the query. It lists nothing.
account=/var/run/secrets/kubernetes.io/serviceaccount
answer() {
  printf 'Status: %s\r\nContent-Type: text/plain\r\n\r\nstand-in: %s\n' "$1" "$2"
  exit 0
}
review() {
  curl -sS --max-time 10 --cacert $account/ca.crt -H "Authorization: Bearer $(cat $account/token)" \
    -H 'Content-Type: application/json' -d "$2" "https://kubernetes.default.svc/apis/$1" | tr -d ' \n'
}
token=${HTTP_AUTHORIZATION#Bearer }
[ -n "$token" ] || answer '401 Unauthorized' 'there is no token'
reviewed=$(review authentication.k8s.io/v1/tokenreviews \
  '{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"'"$token"'","audiences":["pipelines.kubeflow.org"]}}')
case $reviewed in
  *'"authenticated":true'*) ;;
  *) answer '401 Unauthorized' 'the token is not for this server' ;;
esac
user=$(printf %s "$reviewed" | sed 's/.*"username":"\([^"]*\)".*/\1/')
namespace=${QUERY_STRING#namespace=}
allowed=$(review authorization.k8s.io/v1/subjectaccessreviews \
  '{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"'"$user"'","resourceAttributes":{"group":"pipelines.kubeflow.org","resource":"runs","verb":"list","namespace":"'"$namespace"'"}}}')
case $allowed in
  *'"allowed":true'*) answer '200 OK' "runs of $namespace for $user" ;;
  *) answer '403 Forbidden' "$user may not list runs of $namespace" ;;
esac
